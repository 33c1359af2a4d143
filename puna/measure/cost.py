"""What a step has to move and to compute at least, worked out from the plan.

Weights count as the file holds them, each once a step however many tokens there are. The cache counts with the
positions that attention sees, each once. A multiply-add is two operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import cast

from puna.graph import Node, state_shape
from puna.graph.recurrent import RECURRENT
from puna.plan import Plan, Record
from puna.plan.plan import BYTES
from puna.quants import by_name

__all__ = ["Cost", "Span", "record_cost", "step_cost"]

Span = tuple[int, int]  # positions that a sequence held before a step, and its tokens in the step


@dataclass(frozen=True)
class Cost:
    """Bytes and operations.

    weights: bytes of weights read.  kv: bytes of the cache read.  values: other bytes that calls read and write.
    ops: operations of matrix products.  dots: those of them by weights that are no floats, which are byte dots.
    attention: operations of attention.
    """

    weights: int = 0
    kv: int = 0
    values: int = 0
    ops: int = 0
    attention: int = 0
    dots: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def read(self) -> int:
        """Bytes that a step cannot do without: weights and cache."""
        return self.weights + self.kv


@dataclass(frozen=True)
class Step:
    """The sizes of a step. tokens, rows: of all sequences together; rows are those that want logits."""

    plan: Plan
    spans: Sequence[Span]
    rows: int

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.spans)

    def size(self, node: Node) -> int:
        """How many rows of a value there are."""
        return self.rows if node.type.shape[0] == "R" else self.tokens


def step_cost(plan: Plan, spans: Sequence[Span], rows: int) -> Cost:
    """Of a whole step in which `rows` rows want logits."""
    return sum((record_cost(plan, record, spans, rows) for record in plan.records), Cost())


def record_cost(plan: Plan, record: Record, spans: Sequence[Span], rows: int) -> Cost:
    """Of one kernel call."""
    step = Step(plan, spans, rows)
    total = Cost(values=values_bytes(step, record))
    for node in record.nodes:
        total += COSTS.get(node.op, other)(step, node)
    return total


def linear(step: Step, node: Node) -> Cost:
    count, weight = step.size(node), node.inputs[1]
    if count == 0:
        return Cost()
    return products(weight, weight_bytes(weight), 2 * count * weight.type.count(0, 0))


def linear_experts(step: Step, node: Node) -> Cost:
    """As if all choices were different, up to the number of experts."""
    weight, used = node.inputs[1], cast(int, node.type.shape[1])
    chosen, experts = step.size(node) * used, cast(int, weight.type.shape[0])
    each = weight.type.count(0, 0) // experts
    touched = min(chosen, experts)
    return products(weight, weight_bytes(weight) // experts * touched, 2 * chosen * each)


def products(weight: Node, read: int, ops: int) -> Cost:
    """Of products with a weight of which `read` bytes are read."""
    return Cost(weights=read, ops=ops, dots=0 if by_name(weight.type.dtype).is_float else ops)


def embed(step: Step, node: Node) -> Cost:
    table = node.inputs[0].type
    return Cost(weights=step.tokens * by_name(table.dtype).row_bytes(cast(int, table.shape[1])))


def attend(step: Step, node: Node) -> Cost:
    """Positions are seen back to the window's edge; every row sees itself and what is before it."""
    layer, window = cast(int, node.inputs[1].attrs["layer"]), cast(int, node.attrs["window"])
    heads, value = cast("tuple[int, int]", node.type.shape[1:])
    key = cast(int, node.inputs[0].type.shape[2])
    seen = held = 0
    for past, count in step.spans:
        width = window or past + count
        chunk = width if node.attrs.get("chunked") else 0
        seen += sum((past + i) % chunk + 1 if chunk else min(past + i + 1, width) for i in range(count))
        held += past + count - (past - past % chunk if chunk else max(0, past + 1 - width))
    return Cost(kv=held * sum(step.plan.kv.row_bytes(layer)), attention=2 * heads * (key + value) * seen)


def attend_both(step: Step, node: Node) -> Cost:
    """The window as in `attend`, and the blocks that have ended, or as many as are chosen."""
    q, _, pooled, _, *chosen = node.inputs
    return attend(step, node) + listed(step, pooled, best_of(chosen), pairs(q) + pairs(node))


def attend_chosen(step: Step, node: Node) -> Cost:
    q, kv, chosen = node.inputs[:3]
    return listed(step, kv, best_of([chosen]), pairs(q) + pairs(node))


def index(step: Step, node: Node) -> Cost:
    return listed(step, node.inputs[2], None, pairs(node.inputs[0]))


def index_blocks(step: Step, node: Node) -> Cost:
    return listed(step, node.inputs[1], None, pairs(node.inputs[0]))


def best_of(chosen: Sequence[Node]) -> int | None:
    return cast(int, chosen[0].type.shape[1]) if chosen else None


def pairs(x: Node) -> int:
    """Values of a row [heads, size]: multiply-adds with one row of the cache."""
    return prod(cast("tuple[int, int]", x.type.shape[1:]))


def listed(step: Step, store: Node, best: int | None, size: int) -> Cost:
    """Rows of a cache, the `best` of each query or all so far, with each of which `size` multiply-adds are made."""
    layer = cast(int, store.attrs["layer"])
    every, seen, held = step.plan.kv.every.get(layer, 1), 0, 0
    for past, count in step.spans:
        found = [(past + i + 1) // every for i in range(count)]
        found = found if best is None else [min(n, best) for n in found]
        seen += sum(found)
        held += min(sum(found), (past + count) // every)
    return Cost(kv=held * sum(step.plan.kv.row_bytes(layer)), attention=2 * size * seen)


def kv_store(step: Step, node: Node) -> Cost:
    return Cost(values=step.tokens * sum(step.plan.kv.row_bytes(cast(int, node.attrs["layer"]))))


def recurrent(step: Step, node: Node) -> Cost:
    """The state of each sequence is read and written; a multiply-add or two a value for each row."""
    size = prod(state_shape(node))
    walked = 0 if node.op in {"conv", "previous"} else 4 * size * step.tokens
    return other(step, node) + Cost(kv=2 * 4 * size * len(step.spans), attention=walked)


def other(step: Step, node: Node) -> Cost:
    """Small weights: norms, biases."""
    return Cost(weights=sum(weight_bytes(n) for n in node.inputs if n.op == "weight"))


COSTS: Mapping[str, Callable[[Step, Node], Cost]] = {
    "linear": linear,
    "linear_experts": linear_experts,
    "linear_heads": linear,
    "embed": embed,
    "index": index,
    "index_blocks": index_blocks,
    "attend": attend,
    "attend_both": attend_both,
    "attend_chosen": attend_chosen,
    "kv_store": kv_store,
    **dict.fromkeys(RECURRENT, recurrent),
}


def weight_bytes(weight: Node) -> int:
    """Bytes of a weight in the file."""
    *rows, k = cast("tuple[int, ...]", weight.type.shape)
    return prod(rows) * by_name(weight.type.dtype).row_bytes(k)


def values_bytes(step: Step, record: Record) -> int:
    """Bytes of the values that a call finds in memory or leaves there."""
    inner = set(record.nodes)
    outside = {source(n) for node in record.nodes for n in node.inputs} - inner
    placed = [node for node in {*outside, *inner} if node in step.plan.buffers]
    return sum(
        int(node.type.count(step.tokens, step.rows) * BYTES.get(node.type.dtype, 0)) for node in placed
    )


def source(node: Node) -> Node:
    """The value that a reshape shows in another shape."""
    while node.op == "reshape":
        node = node.inputs[0]
    return node
