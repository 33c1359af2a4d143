"""How attention, and the choice of what is attended to, are called: arguments, kernels, how a step shares them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.attention import attend, attend_split
from puna.backends.cpu.kernels.both import Blocks, attend_both
from puna.backends.cpu.kernels.chosen import attend_chosen
from puna.backends.cpu.kernels.index import Choice, index, index_scratch, index_split
from puna.backends.cpu.kernels.shapes import (
    BLOCK,
    MOST_GROUP,
    Shape,
    attend_scratch,
    parts_of,
    split_units,
    tile_of,
)
from puna.backends.cpu.memory import row_bytes
from puna.backends.cpu.target import Target
from puna.graph import Graph, Node, bias_of, sinks_of
from puna.plan import Batch, KVLayout, Plan
from puna.plan.kv import PAGE
from puna.quants import by_name

if TYPE_CHECKING:
    from puna.backends.cpu.program import Program

__all__ = ["ATTENDS", "Attending", "Attends", "by_rows", "scratch_bytes"]


@dataclass(frozen=True)
class Attending:
    """One call and its kernels. whole: a thread takes all that a query sees; split: it takes a block, or None.

    shape: what is fixed about it.  fixed: what its kernels are told.
    """

    args: list[int]
    shape: Shape | Choice
    whole: Callable[..., None]
    split: Callable[..., None] | None
    fixed: Mapping[str, Any]

    def splits(self, tokens: int, threads: int) -> bool:
        """Whether threads share out what a row sees, in a step of single rows over a long past."""
        fits = self.shape.units * tokens <= split_units(threads) and self.shape.each <= MOST_GROUP
        return self.split is not None and fits and threads > 1

    def spec(self, target: Target, tokens: int, mode: str, threads: int) -> Spec:
        write = self.split if mode == "split" and self.splits(tokens, threads) else self.whole
        assert write is not None
        return Spec.of(write, **self.fixed, tile=tile_for(self.shape, self.whole, target, mode))


def tile_for(shape: Shape | Choice, whole: Callable[..., None], target: Target, mode: str) -> int:
    """Queries that are taken at once."""
    if isinstance(shape, Choice):
        return max(n for n in range(1, target.queries + 1) if shape.heads % n == 0)
    if mode == "prefill" and whole is attend:  # there the queries of several rows are one run
        return target.queries * wider(shape, target)
    return tile_of(shape.each, target.queries)


def wider(shape: Shape, target: Target) -> int:
    """How many times as many queries share the unpacking of quantised rows, where registers hold their sums.

    For types of fewer bits, whose codes are taken apart in more registers, it was slower.
    """
    quant = by_name(shape.k_kind)
    return 2 if shape.shared and quant.bits == 8 and not quant.is_float and target.vector == 64 else 1


def attending(program: Program, node: Node) -> Attending:
    """The call of an `attend` or `attend_chosen`."""
    q, kv = node.inputs[:2]
    chosen = node.inputs[2] if node.op == "attend_chosen" else None
    args, shape = places(program, node, q, kv), shape_of(node, program.plan, program.by_rows)
    sinks = program.address(own) if (own := sinks_of(node)) else 0
    args += [program.parts.ctypes.data, 0, program.counters.ctypes.data]
    args += [program.tables.slopes_of(node), sinks]
    if chosen is None:
        return Attending(args, shape, attend, attend_split, {"shape": shape})
    args[7], args[9] = program.address(chosen), row_bytes(chosen)
    fixed = {"shape": shape, "best": cast(int, chosen.type.shape[1])}
    return Attending(args, shape, attend_chosen, None, fixed)


def attending_both(program: Program, node: Node) -> Attending:
    """The call of an `attend_both`."""
    q, kv, pooled, sinks, *chosen = node.inputs
    layout, shape = program.plan.kv, shape_of(node, program.plan, program.by_rows)
    args = places(program, node, q, kv)
    args += [0, 0, 0, 0, program.address(sinks), *places(program, node, q, pooled)[4:]]
    args += [program.address(n) for n in chosen]
    layer, best = cast(int, pooled.attrs["layer"]), sum(cast(int, n.type.shape[1]) for n in chosen)
    blocks = Blocks(layout.every[layer], layout.rows(layer), best)
    return Attending(args, shape, attend_both, None, {"shape": shape, "blocks": blocks})


# What an operation says of a choice, and what goes without saying.
CHOSEN = ("k", 0), ("size", 1), ("local", 0)


def choosing(program: Program, node: Node) -> Attending:
    """The call of an `index` or `index_blocks`."""
    q, *w, kv = node.inputs
    layout, layer = program.plan.kv, cast(int, kv.attrs["layer"])
    heads, size = cast("tuple[int, int]", q.type.shape[1:])
    k, block, local = (cast(int, node.attrs.get(name, usual)) for name, usual in CHOSEN)
    choice = Choice(heads, size, layout.k_type, k, layout.every.get(layer, 1), block, local)
    args = places(program, node, q, kv)
    args[5] = program.address(w[0]) if w else 0
    args += [program.parts.ctypes.data, 0, program.counters.ctypes.data]
    args += [row_bytes(w[0]) if w else 0, layout.positions * 4]
    return Attending(args, choice, index, index_split, {"choice": choice})


def places(program: Program, node: Node, q: Node, kv: Node) -> list[int]:
    """The first arguments: queries and result with the bytes between their rows, keys, values, items."""
    layer = cast(int, kv.attrs["layer"])
    args = [program.address(q), row_bytes(q), program.address(node), row_bytes(node)]
    items = program.tables.groups[program.plan.kv.group_of[layer]].items
    return [*args, *(array.ctypes.data for array in program.cache[layer]), items.ctypes.data]


ATTENDS: Mapping[str, Callable[[Program, Node], Attending]] = {
    "attend": attending,
    "attend_both": attending_both,
    "attend_chosen": attending,
    "index": choosing,
    "index_blocks": choosing,
}


def by_rows(graph: Graph, kv: KVLayout) -> frozenset[int]:
    """The layers whose keys lie as values do, since single rows are read, or the values out of them."""
    readers: dict[int, set[str]] = {layer: set() for layer in kv.widths}
    for node in graph.nodes:
        for store in (n for n in node.inputs if n.op == "kv_store"):
            readers[cast(int, store.attrs["layer"])].add(node.op)
    columns = {"attend"}, {"index"}, {"index_blocks"}
    return frozenset(
        layer
        for layer, ops in readers.items()
        if layer in kv.every or ops not in columns or (layer in kv.shared and "attend" in ops)
    )


def scratch_bytes(node: Node, kv: KVLayout, target: Target) -> int:
    """Bytes that one thread wants for a node."""
    if node.op in {"index", "index_blocks"}:
        return index_scratch(target.queries, kv.positions)
    return attend_scratch(cast(int, node.type.shape[2]), target.queries * (2 if kv.shared else 1))


def shape_of(node: Node, plan: Plan, rows: frozenset[int]) -> Shape:
    """The fixed facts of an attention."""
    layer = cast(int, node.inputs[1].attrs["layer"])
    heads, key, value = plan.kv.widths[layer]
    group, shared = cast(int, node.type.shape[1]) // heads, layer in plan.kv.shared
    scale, window, softcap = (cast(Any, node.attrs.get(n, 0.0)) for n in ("scale", "window", "softcap"))
    kinds = plan.kv.k_type, plan.kv.k_type if shared else plan.kv.v_type
    return Shape(
        *(heads, group, key, value, *kinds, scale, window, softcap),
        alibi=bool(node.attrs.get("alibi")),
        sinks=bool(sinks_of(node)),
        chunked=bool(node.attrs.get("chunked")),
        causal=bool(node.attrs.get("causal", True)),
        parts=parts_of(group),
        by_rows=layer in rows,
        shared=shared,
        biases=bool(bias_of(node)),
        part=cast(str, node.inputs[1].attrs.get("part", "")),
    )


class Attends:
    """All calls of a program, and what they are given in a step. made: of each call, its attending or None."""

    def __init__(self, made: Sequence[Attending | None], threads: int) -> None:
        self.calls, self.threads = [one for one in made if one], threads
        self.at = [i for i, one in enumerate(made) if one]
        self.units = np.array([one.shape.units for one in self.calls], np.int64)

    def mode(self, batch: Batch) -> str:
        """How attention shares out its work: "prefill", or for single rows "decode", or "split" over a long past."""
        tokens = len(batch.tokens)
        if tokens > len(batch.spans):
            return "prefill"
        is_long = max((span.length for span in batch.spans), default=0) > BLOCK * PAGE
        may = any(one.splits(tokens, self.threads) for one in self.calls)
        return "split" if is_long and may else "decode"

    def share_out(
        self, args: NDArray[np.int64], records: NDArray[np.int64], batch: Batch, items: int, mode: str
    ) -> None:
        """Write each call's blocks and units of work."""
        blocks = np.ones(len(self.calls), np.int64)
        if mode == "split":
            most = (max(span.length for span in batch.spans) - 1) // (BLOCK * PAGE) + 1
            blocks[[one.splits(len(batch.tokens), self.threads) for one in self.calls]] = most
        args[self.at, 8], records[self.at, 2] = blocks, items * self.units * blocks
