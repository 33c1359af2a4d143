"""A lowered graph as a list of kernel calls whose buffers lie at fixed offsets of one block of memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from puna.graph import ELEMENTWISE, Graph, Node, Type, encodes
from puna.plan.batch import Batch
from puna.plan.kv import KVLayout
from puna.plan.schedule import FREE, Stage, schedule

__all__ = ["BYTES", "Buffer", "Plan", "Record", "make_plan"]

ALIGN = 64
# Bytes of a value. q8: 32 codes with scale and sums take 48 bytes.
BYTES = {"f32": 4.0, "i32": 4.0, "bf16": 2.0, "q8": 1.5}
# Values with no buffer of their own: the file's tensors, the step's tokens, the cache.
PLACELESS = frozenset({"weight", "constant", "tokens", "positions", "types", "kv_store"})

Scratch = Callable[[tuple[Node, ...], int, int, KVLayout], int]


@dataclass(frozen=True)
class Buffer:
    """Where a value lies: `offset` bytes into the compute buffer, or None for the logits' own memory."""

    offset: int | None
    nbytes: int


@dataclass(frozen=True)
class Record:
    """One kernel call, which computes `nodes`. Records of one stage may run side by side.

    scratch: bytes that the kernel wants for itself.
    """

    nodes: tuple[Node, ...]
    stage: int
    scratch: int

    @property
    def kernel(self) -> str:
        return "+".join(node.op for node in self.nodes)


@dataclass(frozen=True)
class Plan:
    """All calls of a step of at most `tokens` rows, of which `rows` want logits, and the memory they need.

    buffers: where each value lies; one that is made and used within a single record has none.
    compute: bytes of the compute buffer.  scratch: bytes that the neediest kernel wants for itself.
    encoder: how many calls, the first ones, are a step's that encodes; the others are any other's.
    """

    graph: Graph
    records: tuple[Record, ...]
    buffers: Mapping[Node, Buffer]
    tokens: int
    rows: int
    compute: int
    scratch: int
    kv: KVLayout
    encoder: int = 0

    def of(self, batch: Batch) -> slice:
        """The calls of a step."""
        return slice(self.encoder) if batch.encodes else slice(self.encoder, None)

    def table(self) -> str:
        """The plan as text: stage, result, where it lies, scratch, kernel."""
        lines = [f"{'stage':>5} {'result':<22}{'offset':>11}{'bytes':>11}{'scratch':>11}  kernel"]
        for record in self.records:
            node = record.nodes[-1]
            buffer = self.buffers.get(node)
            offset = "-" if buffer is None else "logits" if buffer.offset is None else str(buffer.offset)
            size = buffer.nbytes if buffer else 0
            places = f"{node.type!s:<22}{offset:>11}{size:>11}{record.scratch:>11}"
            lines.append(f"{record.stage:>5} {places}  {record.kernel}")
        if self.encoder:
            lines.append(f"a step that encodes makes the first {self.encoder} calls, any other the rest")
        lines.append(f"compute buffer {self.compute} bytes, scratch {self.scratch} bytes")
        return "\n".join(lines)


def make_plan(
    graph: Graph,
    *,
    tokens: int,
    rows: int,
    kv: KVLayout,
    scratch: Scratch,
    row_ops: Collection[str] = (),
    align: int = ALIGN,
) -> Plan:
    """Order the calls and place every value by its lifetime, at a multiple of `align` bytes.

    scratch: a backend's method of that name.  row_ops: operations that it can join into one record, row by row.
    """
    stages = schedule(graph, row_ops)
    homes, order = assign_homes(graph, stages)
    buffers, compute = place(graph, stages, homes, order, tokens, rows, align)
    records = tuple(
        Record(group, i, scratch(group, tokens, rows, kv))
        for i, stage in enumerate(stages)
        for group in stage
    )
    most = max((record.scratch for record in records), default=0)
    first = encodes(graph)
    encoder = sum(not first.isdisjoint(record.nodes) for record in records)
    return Plan(graph, records, buffers, tokens, rows, compute, most, kv, encoder)


Homes = dict[Node, Node]
Order = dict[Node, int]


def assign_homes(graph: Graph, stages: tuple[Stage, ...]) -> tuple[Homes, Order]:
    """The node in whose buffer each value lies, its own or that of an operand it may overwrite; the order of nodes."""
    order = {node: i for i, node in enumerate(n for stage in stages for group in stage for n in group)}
    for node in graph.nodes:
        if node.op in FREE:
            order[node] = max((order[n] for n in node.inputs), default=-1)
    last: Order = {}
    for node in graph.nodes:
        for operand in node.inputs:
            last[operand] = max(last.get(operand, -1), order[node])
    homes: Homes = {}
    free: Order = {}  # home -> place in the order of the last node that reads what lies there
    for node in sorted(graph.nodes, key=order.__getitem__):
        if node.op in PLACELESS:
            continue
        if node.op == "reshape":
            candidates = node.inputs
        elif node.op in ELEMENTWISE:
            candidates = tuple(n for n in node.inputs if overwritable(n, node, homes, free, order[node]))
        else:
            candidates = ()
        home = homes[candidates[0]] if candidates else node
        homes[node] = home
        free[home] = max(free.get(home, 0), last.get(node, order[node]))
    return homes, order


def overwritable(operand: Node, node: Node, homes: Homes, free: Order, now: int) -> bool:
    """Whether `node`, at `now` in the order, is the last to read the operand's buffer, and reads it once."""
    home = homes.get(operand)
    if home is None or operand.type != node.type:
        return False
    readers = sum(homes.get(n) is home for n in node.inputs)
    return readers == 1 and free[home] <= now


def place(
    graph: Graph,
    stages: tuple[Stage, ...],
    homes: Homes,
    order: Order,
    tokens: int,
    rows: int,
    align: int,
) -> tuple[dict[Node, Buffer], int]:
    """First fit by lifetime, counted in stages: buffers whose lives do not meet share bytes."""
    groups = [group for stage in stages for group in stage]
    stage_of = {node: i for i, stage in enumerate(stages) for group in stage for node in group}
    group_of = {node: group for group in groups for node in group}
    first: Order = {}
    last: Order = {}
    users: dict[Node, set[tuple[Node, ...]]] = {}
    for node in (n for group in groups for n in group):
        for value in (node, *node.inputs):
            if value in homes:
                home = homes[value]
                first[home] = min(first.get(home, stage_of[node]), stage_of[node])
                last[home] = max(last.get(home, 0), stage_of[node])
                users.setdefault(home, set()).add(group_of[node])
    logits = homes[graph.output]
    placed = {logits: Buffer(None, size(logits.type, tokens, rows, align))}
    live: list[tuple[int, int, int]] = []  # offset, end, last stage
    compute = 0
    inner = {home for home, groups in users.items() if len(groups) == 1 and len(next(iter(groups))) > 1}
    for home in sorted(set(homes.values()) - {logits} - inner, key=lambda n: (first[n], order[n])):
        live = [entry for entry in live if entry[2] >= first[home]]
        need = size(home.type, tokens, rows, align)
        offset = 0
        for start, end, _ in sorted(live):
            if offset + need <= start:
                break
            offset = max(offset, end)
        live.append((offset, offset + need, last[home]))
        placed[home] = Buffer(offset, need)
        compute = max(compute, offset + need)
    return {node: placed[home] for node, home in homes.items() if home in placed}, compute


def size(type_: Type, tokens: int, rows: int, align: int) -> int:
    """Bytes of a value, rounded up to the alignment."""
    nbytes = int(type_.count(tokens, rows) * BYTES[type_.dtype])
    return -(-nbytes // align) * align
