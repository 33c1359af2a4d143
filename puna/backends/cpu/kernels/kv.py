"""How keys and values lie in the pages of the cache: written here, and read by attention.

Of one head in a page of PAGE positions, floats are

    keys     [size, PAGE]      attention reads 16 positions at once
    values   [PAGE, size]

and a type with a scale has blocks of 32 values of one position, its parts one after another:

    codes    32 bytes; or 16 of nibbles, the low ones of values 0 to 15, and 4 of fifth bits where the type has them
    unit     f16, and the low as another where the type has one

Keys have the same byte of all positions side by side, [bytes, PAGE]; values have a position's blocks in a row. Keys of
which single ones are read, or that begin with their values, lie as values do, [PAGE, size]. All that counts of a type
is its description (`bits`, `zero`, `table`, whether it has offsets), so any such type can hold either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING

from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.backends.cpu.lookups import lookup
from puna.backends.cpu.verbs import (
    fma,
    fold,
    load_floats,
    load_halves,
    max_lanes,
    maximum,
    minimum,
    round_halves,
    store_floats,
    sum_lanes,
)
from puna.plan.kv import PAGE
from puna.quants import QuantType, by_name

if TYPE_CHECKING:
    from puna.backends.cpu.kernels.rows import Row

__all__ = ["COLUMNS", "PEAKS", "key_columns", "kv_store", "page_bytes", "value_parts"]

LANES = 16
COLUMNS = PAGE // LANES
BLOCK = 32
# Of types without offsets: levels at which a block's peak is tried, the three that leave normal numbers least error.
PEAKS: Mapping[str, tuple[float, ...]] = {
    "Q4_0": (-8.0, -8.5, -7.0),
    "Q5_0": (-16.0, -16.5, -15.0),
    "IQ4_NL": (-127.0, -133.0, 113.0),
}


def page_bytes(kind: str, size: int) -> int:
    """Bytes of one head's keys, or values, of `size` in a page."""
    return by_name(kind).row_bytes(size) * PAGE


def code_bytes(quant: QuantType) -> int:
    """Bytes of a block's codes."""
    return BLOCK * quant.bits // 8


def key_columns(k: Kernel, kind: str, size: int, keys: Ptr) -> Iterator[tuple[Value, list[Value]]]:
    """For each value of a head, its place and that of all positions of a page: COLUMNS vectors of f32 [16].

    The loops are the machine code's; for a type with a scale the body is written twice.
    """
    quant = by_name(kind)
    if quant.is_float:
        for d in k.loop(0, size):
            row = keys.at(d * (PAGE * quant.bytes))
            yield d, [load_floats(row, kind, LANES, c * LANES * quant.bytes) for c in range(COLUMNS)]
        return
    for b in k.loop(0, size // BLOCK):
        block = keys.at(b * (quant.bytes * PAGE))
        units = block.at(code_bytes(quant) * PAGE)
        scales = [scale_of(quant, units, PAGE, c * LANES, LANES) for c in range(COLUMNS)]
        halves = 1 if quant.bits == 8 else 2
        for i in k.loop(0, BLOCK // halves):
            rows = [block.load("u8", LANES, i * PAGE + c * LANES) for c in range(COLUMNS)]
            for half in range(halves):
                d = i + half * (BLOCK // 2)
                codes = rows if quant.bits == 8 else [(r >> 4 if half else r & 15) for r in rows]
                if quant.bits == 5:
                    codes = [c | fifth(block, d, n * LANES) for n, c in enumerate(codes)]
                found = zip(codes, scales, strict=True)
                yield b * BLOCK + d, [valued(quant, code, *scale) for code, scale in found]


def fifth(block: Ptr, d: Value, position: int) -> Value:
    """The fifth bit of value d's codes at 16 positions, in its place."""
    bits = block.load("u8", LANES, (d // 8 + BLOCK // 2) * PAGE + position)
    return ((bits >> (d % 8).to("u8").splat(LANES)) & 1) << 4


def scale_of(quant: QuantType, units: Ptr, gap: int, first: int, lanes: int) -> tuple[Value, Value]:
    """Scale and offset of codes: value = code * scale + offset, the zero point among it.

    gap: units of a block before its lows.
    """
    unit = load_halves(units, lanes, first * 2)
    if quant.table:  # its codes have their zero point taken away already
        return unit, unit.k.zeros("f32", lanes)
    if quant.has_offset:
        return unit, load_halves(units, lanes, (first + gap) * 2)
    return unit, unit * float(-quant.zero)


def valued(quant: QuantType, codes: Value, scale: Value, offset: Value) -> Value:
    """The values of some codes, f32; a scale of one lane is for all."""
    if quant.table:
        return looked_up(quant, codes).to("f32") * scale
    return fma(codes.to("f32"), scale, offset)


def looked_up(quant: QuantType, places: Value) -> Value:
    """Table entries less the zero point, i8."""
    return (lookup(places, quant.table) - quant.zero).as_("i8")


def value_parts(k: Kernel, kind: str, row: Ptr, column: Value, lanes: int, vectors: int) -> list[Value]:
    """From column on, `vectors` vectors of a position's values, f32. row: of the position."""
    quant = by_name(kind)
    if quant.is_float:
        at = row.at(column * quant.bytes)
        return [load_floats(at, kind, lanes, c * lanes * quant.bytes) for c in range(vectors)]
    parts: list[Value] = []
    for b in range(vectors * lanes // BLOCK):
        block = row.at((column // BLOCK + b) * quant.bytes)
        scale, offset = scale_of(quant, block.at(code_bytes(quant)), 1, 0, 1)
        codes = block_codes(k, quant, block)
        parts += [valued(quant, codes[i : i + LANES], scale, offset) for i in (0, LANES)]
    return parts


def block_codes(k: Kernel, quant: QuantType, block: Ptr) -> Value:
    """The 32 codes of one position's block, u8."""
    if quant.bits == 8:
        return block.load("u8", BLOCK)
    nibbles = block.load("u8", BLOCK // 2)
    codes = (nibbles & 15).cat(nibbles >> 4)
    if quant.bits == 4:
        return codes
    bits = block.load("u8", 4, BLOCK // 2).shuffle([i // 8 for i in range(BLOCK)])
    return codes | (((bits >> k.lanes("u8", [i % 8 for i in range(BLOCK)])) & 1) << 4)


def kv_store(row: Row) -> None:
    """Keys [heads, key] and values [heads, value] of a row into their page. tables: the row's slot, i64.

    inputs: k, v, and the two caches, whose kind is that of what they store; or k and its cache alone.
    by_rows: keys are stored as values are.  every: a row that ends no block has a slot below 0, and is not stored.
    """
    k, inputs = row.k, row.op.inputs
    slot, count = row.table(0, "i64"), len(inputs) // 2
    page, position = slot // PAGE, slot % PAGE
    with k.when(slot >= 0) if row.attrs.get("every") else nullcontext():
        for n, (source, cache) in enumerate(zip(inputs[:count], inputs[count:], strict=True)):
            is_key = n == 0 and not row.attrs.get("by_rows")
            (heads, size), target = source.shape, row.at(cache, page)
            for h in k.loop(0, heads):
                head = target.at(h * page_bytes(cache.kind, size))
                put(k, cache.kind, row.at(source).at(h * (size * 4)), head, position, size, is_key)


def put(k: Kernel, kind: str, source: Ptr, head: Ptr, position: Value, size: int, is_key: bool) -> None:
    """One position's keys or values of a head, f32 [size], into its page."""
    quant = by_name(kind)
    if not quant.is_float:
        for b in k.loop(0, size // BLOCK):
            x = source.load("f32", BLOCK, b * (BLOCK * 4), 4)
            if is_key:
                put_block(quant, x, head.at(b * (quant.bytes * PAGE)), PAGE, position)
            else:
                put_block(
                    quant, x, head.at((position * (size // BLOCK) + b) * quant.bytes), 1, k.zeros("i64")
                )
        return
    lanes = gcd(size, LANES)
    for i in k.loop(0, size, lanes):
        part = source.load("f32", lanes, i * 4, 4)
        if not is_key:
            store_floats(head, kind, part, (position * size + i) * quant.bytes)
            continue
        for n in range(lanes):
            one = part[n] if lanes > 1 else part
            store_floats(head, kind, one, ((i + n) * PAGE + position) * quant.bytes)


def put_block(quant: QuantType, x: Value, block: Ptr, gap: int, place: Value) -> None:
    """32 values as a block whose bytes lie `gap` apart, at `place` among those of a gap."""
    codes, unit, low = quantized(quant, x)
    parts = [codes]
    if quant.bits < 8:
        parts = [(codes[:16] & 15) | (codes[16:] << 4)]
    if quant.bits == 5:
        parts.append((codes >> 4).compare(">", 0).as_("u32").as_("u8"))
    at = 0
    for part in parts:
        for i in range(part.lanes if gap > 1 else 0):
            block.store(part[i], place + (at + i) * gap)
        if gap == 1:
            block.store(part, at)
        at += part.lanes
    units = block.at(at * gap)
    units.store(round_halves(unit), place * 2)
    if low is not None:
        units.store(round_halves(low), place * 2 + gap * 2)


def quantized(quant: QuantType, x: Value) -> tuple[Value, Value, Value | None]:
    """Codes u8 [32] of 32 values, unit and low. NaN and infinity come through.

    By the formulas of GGML's quantisers, but that types without offsets, except of 8 bits, get the best of some units.
    """
    k = x.k
    # As integers, sizes are in order, NaN above all.
    size = max_lanes(x.as_("u32") & 0x7FFFFFFF).as_("f32")
    least, most = fold(x, minimum), fold(x, maximum)
    top = (1 << quant.bits) - 1
    if quant.has_offset:
        unit, low = (most - least) * (1.0 / top), least + size * 0.0
        steps = (x - least.splat(BLOCK)) * inverse(unit) + 0.5
        return whole(steps, top), unit, low
    if quant.bits == 8:
        unit = size * (1.0 / 127)
        return whole(x * inverse(unit) + (quant.zero + 0.5), 255), unit, None
    peak = k.select(most >= -least, most, least) + size * 0.0
    return *best_of(quant, x, [peak * (1.0 / level) for level in PEAKS[quant.name]]), None


def inverse(unit: Value) -> Value:
    """1 / unit, or 0, for the values of a block."""
    k = unit.k
    return k.select(unit.compare("==", 0.0), k.zeros("f32"), k.const("f32", 1.0) / unit).splat(BLOCK)


def best_of(quant: QuantType, x: Value, units: Sequence[Value]) -> tuple[Value, Value]:
    """Codes under the unit that allows the least squared error, and the unit of least error for these codes.

    For levels c it is sum(c x) / sum(c c), and the error is less by sum(c x) ** 2 / sum(c c) than that of zeros.
    """
    k, found = x.k, []
    for unit in units:
        codes = nearest(quant, x, unit)
        levels = looked_up(quant, codes).to("f32") if quant.table else codes.to("f32") - float(quant.zero)
        products, squares = sum_lanes(levels * x), sum_lanes(levels * levels)
        fitted = k.select(squares > 0.0, products / squares, unit)
        found.append((products * fitted, codes, fitted))
    gain, codes, unit = found[0]
    for other in found[1:]:
        is_better = other[0] > gain
        gain, codes, unit = (
            k.select(is_better, *pair) for pair in zip(other, (gain, codes, unit), strict=True)
        )
    return codes, unit


def whole(steps: Value, top: int) -> Value:
    """Steps without their fraction, from 0 to `top`."""
    k = steps.k
    zeros, most = k.zeros("f32", BLOCK), k.const("f32", float(top), BLOCK)
    return minimum(maximum(steps, zeros), most).to("u8")


def nearest(quant: QuantType, x: Value, unit: Value) -> Value:
    """Codes of the levels nearest to x / unit."""
    steps = x * inverse(unit)
    if not quant.table:
        return whole(steps + (quant.zero + 0.5), (1 << quant.bits) - 1)
    k, places = x.k, x.k.zeros("u8", BLOCK)
    one, none = k.const("u8", 1, BLOCK), k.zeros("u8", BLOCK)
    for below, above in pairwise(entry - quant.zero for entry in quant.table):
        places = places + k.select(steps > (below + above) / 2, one, none)
    return places
