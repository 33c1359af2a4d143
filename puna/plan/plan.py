"""A lowered graph as a list of kernel calls whose buffers lie at fixed offsets of one block of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from puna.graph import ELEMENTWISE, Graph, Node, Type
from puna.plan.kv import KVLayout

__all__ = ["Buffer", "Plan", "Record", "make_plan"]

ALIGN = 64
BYTES = 4  # of an f32 or an i32
# Values with no buffer of their own: the file's tensors, the step's tokens, the cache.
PLACELESS = frozenset({"weight", "tokens", "kv_store"})

Scratch = Callable[[Node, int, int, KVLayout], int]


@dataclass(frozen=True)
class Buffer:
    """Where a value lies: `offset` bytes into the compute buffer, or None for the logits' own memory."""

    offset: int | None
    nbytes: int


@dataclass(frozen=True)
class Record:
    """One kernel call: the node to compute. Its operands' buffers are found in the plan."""

    node: Node
    scratch: int

    @property
    def kernel(self) -> str:
        return self.node.op


@dataclass(frozen=True)
class Plan:
    """All calls of a step of at most `tokens` rows, of which `rows` want logits, and the memory they need.

    compute: bytes of the compute buffer.  scratch: bytes that the neediest kernel wants for itself.
    """

    graph: Graph
    records: tuple[Record, ...]
    buffers: Mapping[Node, Buffer]
    tokens: int
    rows: int
    compute: int
    scratch: int
    kv: KVLayout

    def table(self) -> str:
        """The plan as text: kernel, result, where it lies, scratch."""
        lines = [f"{'kernel':<16}{'result':<24}{'offset':>12}{'bytes':>12}{'scratch':>12}"]
        for record in self.records:
            buffer = self.buffers.get(record.node)
            offset = "-" if buffer is None else "logits" if buffer.offset is None else str(buffer.offset)
            size = buffer.nbytes if buffer else 0
            lines.append(
                f"{record.kernel:<16}{record.node.type!s:<24}{offset:>12}{size:>12}{record.scratch:>12}"
            )
        lines.append(f"compute buffer {self.compute} bytes, scratch {self.scratch} bytes")
        return "\n".join(lines)


def make_plan(graph: Graph, *, tokens: int, rows: int, kv: KVLayout, scratch: Scratch) -> Plan:
    """Order the calls and place every value by its lifetime.

    scratch: a backend's method of that name.
    """
    homes = assign_homes(graph)
    buffers, compute = place(graph, homes, tokens, rows)
    calls = [n for n in graph.nodes if n.op not in {"weight", "tokens", "reshape"}]
    records = tuple(Record(node, scratch(node, tokens, rows, kv)) for node in calls)
    most = max((record.scratch for record in records), default=0)
    return Plan(graph, records, buffers, tokens, rows, compute, most, kv)


def assign_homes(graph: Graph) -> dict[Node, Node]:
    """The node in whose buffer each value lies: its own, or that of an operand it may overwrite."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    last = {operand: order[node] for node in graph.nodes for operand in node.inputs}
    homes: dict[Node, Node] = {}
    free: dict[Node, int] = {}  # home -> index of the last node that reads what lies there
    for node in graph.nodes:
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
    return homes


def overwritable(
    operand: Node, node: Node, homes: Mapping[Node, Node], free: Mapping[Node, int], now: int
) -> bool:
    """Whether `node`, the `now`-th, is the last to read the operand's buffer, and reads it once."""
    home = homes.get(operand)
    if home is None or operand.type != node.type:
        return False
    readers = sum(homes.get(n) is home for n in node.inputs)
    return readers == 1 and free[home] <= now


def place(graph: Graph, homes: Mapping[Node, Node], tokens: int, rows: int) -> tuple[dict[Node, Buffer], int]:
    """First fit by lifetime: buffers whose lives do not meet share bytes."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    last = {home: order[home] for home in homes.values()}
    for node in graph.nodes:
        for operand in node.inputs:
            if operand in homes:
                last[homes[operand]] = max(last[homes[operand]], order[node])
    logits = homes[graph.output]
    placed: dict[Node, Buffer] = {logits: Buffer(None, size(logits.type, tokens, rows))}
    live: list[tuple[int, int, int]] = []  # offset, end, last use
    compute = 0
    for home in (n for n in graph.nodes if homes.get(n) is n and n is not logits):
        live = [entry for entry in live if entry[2] >= order[home]]
        need = size(home.type, tokens, rows)
        offset = 0
        for start, end, _ in sorted(live):
            if offset + need <= start:
                break
            offset = max(offset, end)
        live.append((offset, offset + need, last[home]))
        placed[home] = Buffer(offset, need)
        compute = max(compute, offset + need)
    return {node: placed[home] for node, home in homes.items()}, compute


def size(type_: Type, tokens: int, rows: int) -> int:
    """Bytes of a value, rounded up to the alignment."""
    return -(-type_.count(tokens, rows) * BYTES // ALIGN) * ALIGN
