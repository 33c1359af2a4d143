"""Row programs: a chain of operations that each treat a row by itself, run on one row after another.

What one operation makes and the next reads stays in the cache of the core; there is no barrier between them. The chain
is a static parameter, so each distinct one is a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from puna.backends.cpu.kernels.hadamard import hadamard
from puna.backends.cpu.kernels.kv import kv_store
from puna.backends.cpu.kernels.linear import FIRST_SUM, SCALE, SCALED_SUM, SPAN_BYTES, SUM
from puna.backends.cpu.kernels.mixture import MIXTURE
from puna.backends.cpu.kernels.row_ops import ROW_OPS
from puna.backends.cpu.lanes import LLVMBlock, value_of
from puna.backends.cpu.lang import BITS, Kernel, Ptr, Value
from puna.backends.cpu.panels import SPAN
from puna.backends.cpu.verbs import (
    load_floats,
    max_lanes,
    maximum,
    round_even,
    store_floats,
    sum_lanes,
)
from puna.graph import Rope
from puna.quants import by_name

__all__ = ["EMITTERS", "Operand", "RowOp", "rows"]

LANES = 16
TINY = 1e-30  # a span of values no larger is quantised to zeros: 127 / TINY is still a number


@dataclass(frozen=True)
class Operand:
    """Where an operand's row lies: `stride` bytes times the row from the address in argument `index`.

    With `index` None it is the thread's own, `stride` bytes into its scratch.  shape: of one row.  kind: f32, or how
    the values of a table are stored.
    """

    index: int | None
    stride: int
    shape: tuple[int, ...]
    kind: str = "f32"


@dataclass(frozen=True)
class RowOp:
    """One operation of a chain. tables: arguments that hold what the step gives, such as positions."""

    op: str
    out: Operand
    inputs: tuple[Operand, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    tables: tuple[int, ...] = ()


class Row:
    """The row being computed, while its kernel is written."""

    def __init__(
        self, k: Kernel, op: RowOp, addresses: Mapping[int, Ptr], scratch: Ptr, index: Value
    ) -> None:
        self.k, self.op, self.addresses, self.scratch, self.index = k, op, addresses, scratch, index
        self.attrs = dict(op.attrs)

    def at(self, operand: Operand, index: Value | None = None) -> Ptr:
        if operand.index is None:
            return self.scratch.at(operand.stride)
        base = self.addresses[operand.index]
        return base.at((self.index if index is None else index) * operand.stride) if operand.stride else base

    @property
    def out(self) -> Ptr:
        return self.at(self.op.out)

    def input(self, place: int) -> Ptr:
        return self.at(self.op.inputs[place])

    def table(self, place: int, kind: str) -> Value:
        """The row's entry of a table of the step."""
        address = self.addresses[self.op.tables[place]]
        return address.load(kind, 1, self.index * (BITS[kind] // 8), BITS[kind] // 8)

    @property
    def count(self) -> int:
        return prod(self.op.out.shape)

    @property
    def width(self) -> int:
        return self.op.out.shape[-1]

    def vectors(self, count: int) -> Iterator[tuple[Value, int]]:
        """Byte offsets of vectors of f32 that cover `count` values, and their lanes."""
        lanes = gcd(count, LANES)
        for i in self.k.loop(0, count * 4, lanes * 4):
            yield i, lanes

    def map(self, how: Callable[..., Value]) -> None:
        """out[i] = how(inputs[0][i], inputs[1][i], ...); a shorter input is repeated."""
        sizes = [prod(operand.shape) for operand in self.op.inputs]
        shortest = min(sizes)
        for start in self.k.loop(0, self.count * 4, shortest * 4):
            for i, lanes in self.vectors(shortest):
                places = [i if size == shortest else start + i for size in sizes]
                values = [self.input(n).load("f32", lanes, place, 4) for n, place in enumerate(places)]
                self.out.store(how(*values), start + i, 4)


def rows(k: Kernel, *, ops: tuple[RowOp, ...]) -> None:
    """Rows begin to end - 1 through all operations. args: the address of each argument."""
    args, begin, end, scratch = k.args
    used = {o.index for op in ops for o in (op.out, *op.inputs) if o.index is not None}
    addresses = {i: args.ptr(8 * i) for i in sorted(used | {t for op in ops for t in op.tables})}
    for row in k.loop(begin, end):
        for op in ops:
            EMITTERS[op.op](Row(k, op, addresses, scratch, row))


def quantize(row: Row) -> None:
    """To spans of 32: codes = x * 127 / max |x|, with the sums that zero points and offsets want."""
    k = row.k
    for span in k.loop(0, row.count // SPAN):
        x, out = row.input(0).at(span * (SPAN * 4)), row.out.at(span * SPAN_BYTES)
        parts = [x.load("f32", LANES, i * LANES * 4, 4) for i in range(2)]
        # As integers, sizes are in order, NaN above all: it must not get lost.
        sizes = [part.as_("u32") & 0x7FFFFFFF for part in parts]
        largest = max_lanes(maximum(*sizes)).as_("f32")
        inverse = k.select(largest > TINY, k.const("f32", 127.0) / largest, k.zeros("f32"))
        codes = [round_even(part * inverse.splat(LANES)).to("i32") for part in parts]
        first = sum_lanes(codes[0])
        total = first + sum_lanes(codes[1])
        scale = largest * (1.0 / 127.0)
        out.store(codes[0].to("i8").cat(codes[1].to("i8")), 0, 4)
        out.store(scale, SCALE, 4)
        out.store(scale * total.to("f32"), SCALED_SUM, 4)
        out.store(total, SUM, 4)
        out.store(first, FIRST_SUM, 4)


def round_row(row: Row) -> None:
    """To bf16."""
    for i, lanes in row.vectors(row.count):
        store_floats(row.out, "BF16", row.input(0).load("f32", lanes, i, 4), i // 2)


def embed(row: Row) -> None:
    """A row of the table, or one for each of the ids that an operation has made."""
    if len(row.op.inputs) == 1:
        embed_one(row, row.table(0, "i32"), row.out)
        return
    for i in row.k.loop(0, row.count // row.width):
        embed_one(row, row.input(1).load("i32", 1, i * 4, 4), row.out.at(i * (row.width * 4)))


def embed_one(row: Row, index: Value, out: Ptr) -> None:
    """A row of the table in the file's form, by the type's own lines."""
    table = row.op.inputs[0]
    quant, source = by_name(table.kind), row.at(table, index.to("i64"))
    if quant.is_float:
        size = quant.bytes
        for i, lanes in row.vectors(row.width):
            out.store(load_floats(source, quant.name, lanes, (i * size) >> 2), i, 4)
        return
    for b in row.k.loop(0, row.width // quant.block):
        block, target = LLVMBlock(source.at(b * quant.bytes)), out.at(b * (quant.block * 4))
        for g in range(quant.groups):
            target.store(value_of(quant.values(block, g)), g * quant.group * 4, 4)


def select(row: Row) -> None:
    source = row.at(row.op.inputs[0], row.table(0, "i32").to("i64"))
    for i, lanes in row.vectors(row.count):
        row.out.store(source.load("f32", lanes, i, 4), i, 4)


def rope(row: Row) -> None:
    """Tables: cosines and sines of the row's angles, f32 [dims / 2] each, one after the other."""
    rule: Rope = row.attrs["rope"]
    k, half, width = row.k, rule.dims // 2, row.width
    angles = row.addresses[row.op.tables[0]].at(row.index * (rule.dims * 4))
    lanes = gcd(half, LANES)
    for start in k.loop(0, row.count * 4, width * 4):
        x, out = row.input(0).at(start), row.out.at(start)
        for i in k.loop(0, half * 4, lanes * 4):
            cos, sin = angles.load("f32", lanes, i, 4), angles.load("f32", lanes, i + half * 4, 4)
            if rule.layout == "halves":
                a, b = x.load("f32", lanes, i, 4), x.load("f32", lanes, i + half * 4, 4)
                out.store(a * cos - b * sin, i, 4)
                out.store(a * sin + b * cos, i + half * 4, 4)
                continue
            pairs = x.load("f32", 2 * lanes, i * 2, 4)
            a, b = pairs[0::2], pairs[1::2]
            first, second = a * cos - b * sin, a * sin + b * cos
            order = [n // 2 + n % 2 * lanes for n in range(2 * lanes)]
            both = first.shuffle(order, second) if lanes > 1 else first.pair(second)
            out.store(both, i * 2, 4)
        if rule.dims < width:
            for i, n in row.vectors(width - rule.dims):
                out.store(x.load("f32", n, i + rule.dims * 4, 4), i + rule.dims * 4, 4)


def temper(row: Row) -> None:
    factor = row.table(0, "f32")
    row.map(lambda x: x * factor.splat(x.lanes))


EMITTERS: Mapping[str, Callable[[Row], None]] = {
    **MIXTURE,
    "hadamard": hadamard,
    **ROW_OPS,
    "embed": embed,
    "kv_store": kv_store,
    "quantize": quantize,
    "rope": rope,
    "round": round_row,
    "select": select,
    "temper": temper,
}
