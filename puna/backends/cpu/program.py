"""A plan made ready to run: records for the native loop, their arguments, and what changes from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.base import copy_pages
from puna.backends.cpu import runner
from puna.backends.cpu.attends import ATTENDS, Attending, Attends, by_rows
from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.kernels.experts import list_bytes
from puna.backends.cpu.kernels.floats import form_of
from puna.backends.cpu.kernels.recurrent import RECURRENT
from puna.backends.cpu.kernels.rows import Operand, RowOp, rows
from puna.backends.cpu.kernels.shapes import parts_bytes, split_units
from puna.backends.cpu.memory import ALIGN, allocate, row_bytes
from puna.backends.cpu.panels import ROWS
from puna.backends.cpu.products import FEW, experts_spec, linear_spec, panels_at_once
from puna.backends.cpu.tables import Tables
from puna.backends.cpu.threads import Team
from puna.backends.cpu.upload import Weights, matrix_bytes
from puna.graph import Node
from puna.plan import Batch, Plan, Record
from puna.quants import by_name

__all__ = ["Program", "calls_bytes"]

AHEAD = 256 << 10  # most bytes that a waiting thread asks for
MOST_READY = 64  # sizes of steps whose records are kept
EXPERT_CLAIMS = 4  # by which an expert's matrix is shared out
CLAIMS = 4  # by which a thread takes its share of a walk
MOST_ARGS = 24  # of a call that is no chain of row operations
CHUNK = 1 << 20  # most bytes of weights that a thread claims at a time


@dataclass
class Call:
    """One record: its arguments, and the dimension ("T" or "R") that its work grows with."""

    args: list[int]
    dim: str
    spec: Spec | None = None
    weight: Node | None = None
    form: str = ""  # of the weight
    used: int = 0  # experts that a token chooses
    sharing: int = 1  # choices that read the same activations
    attending: Attending | None = None
    parts: int = 0  # units that the rows of a sequence are cut into, where they are walked over in order
    logits: int | None = None  # which argument is the address of the logits


class Program:
    """Runs a plan on a team of threads. The memory of all regions but the weights is its own."""

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        compiler: Compiler,
        threads: int,
        repack: bool,
        align: int = ALIGN,
    ) -> None:
        self.plan, self.weights, self.raw = plan, weights.packed, weights.raw
        self.compiler, self.repack = compiler, repack
        parts = parts_bytes(plan.kv, threads)
        self.scratch = allocate(plan.scratch)
        self.parts = self.scratch[len(self.scratch) - parts :]
        self.team = Team(compiler, threads, self.scratch[: len(self.scratch) - parts])
        self.compute = allocate(plan.compute, align)
        self.cache = {
            layer: tuple(
                allocate(width * plan.kv.pages(layer) * plan.kv.rows(layer), align)
                for width in plan.kv.row_bytes(layer)
            )
            for layer in plan.kv.widths
        }
        self.by_rows = by_rows(plan.graph, plan.kv)
        self.states = {name: allocate(plan.kv.state_bytes(name)) for name in plan.kv.states}
        self.tables = Tables(plan, self.weights)
        self.counters = allocate(split_units(threads) * 8)
        self.calls = [self.call(record) for record in plan.records]
        width = args_width(plan)
        self.args = allocate(len(self.calls) * width * 8).view(np.int64).reshape(len(self.calls), width)
        for row, call in zip(self.args, self.calls, strict=True):
            row[: len(call.args)] = call.args
        self.records = allocate(len(self.calls) * runner.RECORD_BYTES).view(np.int64).reshape(-1, 8)
        self.records[:, 1] = self.args.ctypes.data + np.arange(len(self.calls)) * width * 8
        self.records[:, 5] = ends(plan)
        self.linears = {
            dim: [i for i, c in enumerate(self.calls) if c.weight and c.dim == dim and not c.used]
            for dim in "TR"
        }
        self.experts = [(i, c.used) for i, c in enumerate(self.calls) if c.used]
        self.attends = Attends([call.attending for call in self.calls], threads)
        self.walks = [i for i, c in enumerate(self.calls) if c.parts]
        self.walk_parts = np.array([c.parts for c in self.calls if c.parts], np.int64)
        self.logits = [(i, c.logits) for i, c in enumerate(self.calls) if c.logits is not None]
        self.ready: dict[tuple[int, int, str], NDArray[np.int64]] = {}

    def call(self, record: Record) -> Call:
        node = record.nodes[0]
        if node.op == "linear":
            return self.linear_call(node)
        if node.op in {"linear_experts", "linear_heads"}:
            return self.experts_call(node)
        if node.op in RECURRENT:
            return self.walk_call(node)
        if node.op in ATTENDS:
            attending = ATTENDS[node.op](self, node)
            return Call(attending.args, "T", attending=attending)
        return self.rows_call(record)

    def address(self, node: Node) -> int:
        """Where a value begins; the logits have no address before a step."""
        if node.op == "weight":
            return int(self.weights[cast(str, node.attrs["tensor"])].ctypes.data)
        if node.op in {"tokens", "positions"}:
            return int(getattr(self.tables, node.op).ctypes.data)
        if node.op == "constant":
            return self.tables.constant(cast("tuple[float, ...]", node.attrs["values"]))
        offset = self.plan.buffers[node].offset
        return 0 if offset is None else int(self.compute.ctypes.data) + offset

    def linear_call(self, node: Node) -> Call:
        x, weight = node.inputs
        count, k = cast("tuple[int, int]", weight.type.shape)
        places = [self.address(weight), self.address(x), self.address(node)]
        args = [*places, count, k, self.panel_bytes(weight), row_bytes(x), row_bytes(node), 0]
        logits = 2 if self.plan.buffers[node].offset is None else None
        return Call(args, str(node.type.shape[0]), weight=weight, form=form_of(node), logits=logits)

    def panel_bytes(self, weight: Node) -> int:
        """Bytes of 16 rows of a matrix in panels, or of one row in the file's form."""
        kind, k = weight.type.dtype, cast(int, weight.type.shape[-1])
        return matrix_bytes(kind, ROWS, k) if self.repack else by_name(kind).row_bytes(k)

    def experts_call(self, node: Node) -> Call:
        x, weight, *ids = node.inputs
        count, k = cast("tuple[int, int]", weight.type.shape[1:])
        used, panel = cast(int, node.type.shape[1]), self.panel_bytes(weight)
        expert = matrix_bytes(weight.type.dtype, count, k) if self.repack else count * panel
        sharing = used if len(x.type.shape) == 2 else 1
        x_stride = row_bytes(x) * sharing // used
        places = [self.address(n) for n in (weight, x, node, *ids)]
        if not ids:  # each head has its own
            places.append(self.tables.each(used))
        args = [*places, count, k, panel, expert, x_stride, row_bytes(node) // used, 0]
        args.append(list_bytes(self.plan.tokens * used))
        dim, form = str(node.type.shape[0]), form_of(node)
        return Call(args, dim, weight=weight, form=form, used=used, sharing=sharing)

    def walk_call(self, node: Node) -> Call:
        work, state = RECURRENT[node.op](node), self.states[cast(str, node.attrs["state"])]
        places = [self.address(node), state.ctypes.data, self.tables.spans.ctypes.data]
        return Call([*places, *map(self.address, node.inputs)], "T", work.spec, parts=work.parts)

    def rows_call(self, record: Record) -> Call:
        builder = RowsBuilder(self, record)
        ops = tuple(builder.op(node) for node in record.nodes)
        dim = (
            record.nodes[0].inputs[0].type.shape[0]
            if record.nodes[0].op == "kv_store"
            else record.nodes[0].type.shape[0]
        )
        return Call(builder.args, str(dim), spec=Spec.of(rows, ops=ops), logits=builder.logits)

    def spec(self, call: Call, count: int, mode: str) -> Spec:
        """The kernel for a call in a step with `count` rows."""
        if call.spec:
            return call.spec
        if call.attending:
            return call.attending.spec(self.compiler.target, count, mode, self.team.threads)
        assert call.weight is not None
        target, form = self.compiler.target, call.form
        if call.used:
            return experts_spec(target, form, count, self.repack, call.sharing)
        return linear_spec(target, form, count, self.repack)

    def units(self, call: Call, count: int) -> tuple[int, int]:
        """Units of work and how many a thread claims at a time."""
        if call.parts:
            return 0, -(-call.parts // (CLAIMS * self.team.threads))  # times the sequences of the step
        if call.spec:
            return count, 1 if count < 64 else 4
        if call.attending or count == 0:
            return 0, 1  # attention's follow from the step
        assert call.weight is not None
        if call.used:
            return self.experts_units(call, count)
        panels = -(-call.args[3] // ROWS)
        panel_bytes = ROWS * by_name(call.weight.type.dtype).row_bytes(call.args[4])
        width = panels_at_once(self.compiler.target, call.form, count) if self.repack else 1
        if width > 1 or (self.repack and count > FEW):
            return -(-panels // width), 1
        return panels, self.grain(panels, panel_bytes)

    def experts_units(self, call: Call, count: int) -> tuple[int, int]:
        assert call.weight is not None
        panels, experts = -(-call.args[4] // ROWS), cast(int, call.weight.type.shape[0])
        if count == 1 or not self.repack:
            units = count * call.used * panels
            return units, self.grain(units, ROWS * by_name(call.weight.type.dtype).row_bytes(call.args[5]))
        runs = -(-panels // self.compiler.target.tile[0])
        return experts * runs, -(-runs // EXPERT_CLAIMS)

    def grain(self, panels: int, panel_bytes: int) -> int:
        """Panels that a thread claims at a time.

        Equal shares: each claim begins with cold memory, so a small matrix is claimed once a thread.
        """
        share = -(-panels // self.team.threads)
        pieces = -(-share * panel_bytes // CHUNK)
        return max(1, -(-share // pieces))

    def ahead(self, grains: NDArray[np.int64], sizes: dict[str, int]) -> NDArray[np.int64]:
        """For each record: address and bytes of the weights that the next matrix begins with, for few tokens.

        Whoever waits comes second to the matrix, so it is the second chunk that it should ask for.
        """
        found, following = np.zeros((len(self.calls), 2), np.int64), (0, 0)
        for i in reversed(range(len(self.calls))):
            found[i], call = following, self.calls[i]
            if call.weight is not None and not call.used and 0 < sizes[call.dim] <= FEW and self.repack:
                chunk = int(grains[i]) * call.args[5]
                following = call.args[0] + chunk, min(chunk, AHEAD)
        return found

    def prepare(self, tokens: int, count: int, mode: str) -> NDArray[np.int64]:
        """Kernel address, units, grain, and what to ask for ahead, of all records for a step of this size: [n, 5]."""
        key = tokens, count, mode
        if key not in self.ready:
            if len(self.ready) >= MOST_READY:
                self.ready.clear()
            sizes = {"T": tokens, "R": count}
            specs = [self.spec(call, sizes[call.dim], mode) for call in self.calls]
            found = self.compiler.addresses_of(dict.fromkeys(specs))
            shares = [self.units(call, sizes[call.dim]) for call in self.calls]
            columns = np.zeros((len(specs), 5), np.int64)
            columns[:, 0], columns[:, 1:3] = [found[spec] for spec in specs], shares
            columns[:, 3:] = self.ahead(columns[:, 2], sizes)
            self.ready[key] = columns
        return self.ready[key]

    def run(self, batch: Batch, logits: NDArray[np.float32]) -> None:
        tokens, count = len(batch.tokens), len(batch.outputs)
        mode = self.attends.mode(batch)
        if self.team.renew():
            self.records[:, 4] = self.counters[:] = 0  # what a fork caught in the middle
        self.target = logits  # kept: see `Shared.work_out`
        copy_pages(self.plan.kv, self.cache, batch.copies)
        ready = self.prepare(tokens, count, mode)
        self.records[:, [0, 2, 3, 6, 7]] = ready
        items = self.tables.fill(batch, mode != "prefill")
        self.attends.share_out(self.args, self.records, batch, items, mode)
        self.records[self.walks, 2] = self.tables.sequences * self.walk_parts
        self.args[self.linears["T"], 8], self.args[self.linears["R"], 8] = tokens, count
        for i, used in self.experts:
            self.args[i, 10] = (tokens if self.calls[i].dim == "T" else count) * used
        for i, argument in self.logits:
            self.args[i, argument] = logits.ctypes.data
        calls = range(len(self.calls))[self.plan.of(batch)]
        start = self.records.ctypes.data + calls.start * runner.RECORD_BYTES
        self.team.run(start, len(calls), (tokens, count, mode, batch.encodes))


class RowsBuilder:
    """Turns the nodes of a row program into operations over numbered arguments."""

    def __init__(self, program: Program, record: Record) -> None:
        self.program, self.args = program, list[int]()
        self.logits: int | None = None
        self.local = 0  # bytes of thread scratch given out
        self.locals: dict[Node, int] = {}

    def argument(self, address: int) -> int:
        """The number of an argument; equal addresses share one."""
        if address not in self.args:
            self.args.append(address)
        return self.args.index(address)

    def operand(self, node: Node) -> Operand:
        same = {"weight", "constant"}  # for all rows
        shape = cast("tuple[int, ...]", node.type.shape if node.op in same else node.type.shape[1:])
        while node.op == "reshape":
            node = node.inputs[0]
        if node.op in same:
            return Operand(self.argument(self.program.address(node)), 0, shape)
        buffer = self.program.plan.buffers.get(node)
        if buffer is None:
            if node not in self.locals:
                self.locals[node] = self.local
                self.local += -(-row_bytes(node) // 64) * 64
            return Operand(None, self.locals[node], shape)
        index = self.argument(self.program.address(node))
        if buffer.offset is None:
            self.logits = index
        return Operand(index, row_bytes(node), shape)

    def op(self, node: Node) -> RowOp:
        tables = tuple(self.argument(address) for address in self.program.tables.addresses(node))
        attrs = tuple(
            (key, value)
            for key, value in node.attrs.items()
            if key not in {"layer", "length", "by", "offset"} or node.op in {"scale", "shift"}
        )
        if node.op == "embed":
            raw = self.program.raw[cast(str, node.inputs[0].attrs["tensor"])]
            table = Operand(
                self.argument(raw.ctypes.data), raw.shape[1], (raw.shape[1],), node.inputs[0].type.dtype
            )
            ids = () if tables else (self.operand(node.inputs[1]),)
            return RowOp("embed", self.operand(node), (table, *ids), attrs, tables)
        read = node.inputs[:1] if node.op == "rope" else node.inputs  # the angles hold its factors
        inputs = [self.operand(n) for n in read]
        if node.op == "kv_store":
            kv, layer = self.program.plan.kv, cast(int, node.attrs["layer"])
            inputs = inputs[:1] if layer in kv.shared else inputs
            kinds, widths = (kv.k_type, kv.v_type), kv.row_bytes(layer)
            for n, cache in enumerate(self.program.cache[layer][: len(inputs)]):
                stride = widths[n] * kv.rows(layer)
                inputs.append(Operand(self.argument(cache.ctypes.data), stride, (), kinds[n]))
            how = ("by_rows", layer in self.program.by_rows), ("every", layer in kv.every)
            return RowOp("kv_store", inputs[0], tuple(inputs), how, tables)
        return RowOp(node.op, self.operand(node), tuple(inputs), attrs, tables)


def args_width(plan: Plan) -> int:
    """Arguments that there is room for in each call: for row operations their operands, tables and caches."""
    return max(MOST_ARGS, *(sum(len(n.inputs) + 4 for n in record.nodes) for record in plan.records))


def calls_bytes(plan: Plan) -> int:
    """Bytes of all calls, with their arguments."""
    return len(plan.records) * (runner.RECORD_BYTES + args_width(plan) * 8)


def ends(plan: Plan) -> list[int]:
    """For each record: how many end at a barrier after it, or 0 where the stage goes on."""
    counts, open_ = [], 0
    for record, following in zip(plan.records, [*plan.records[1:], None], strict=True):
        open_ += 1
        last = following is None or following.stage != record.stage
        counts.append(open_ if last else 0)
        open_ = 0 if last else open_
    return counts
