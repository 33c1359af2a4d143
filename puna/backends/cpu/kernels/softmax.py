"""The online softmax of attention: what a tile of queries keeps while it is led over keys and values, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from puna.backends.cpu.kernels.kv import COLUMNS, value_parts
from puna.backends.cpu.kernels.scores import LANES, WIDE, Rows
from puna.backends.cpu.kernels.shapes import BIASES, Shape
from puna.backends.cpu.lang import Kernel, Ptr, Value, Var
from puna.backends.cpu.verbs import exp, fma, max_lanes, maximum, minimum, sum_lanes, tanh
from puna.graph import FAR
from puna.plan.kv import PAGE

__all__ = [
    "HIDDEN",
    "Past",
    "Query",
    "clear",
    "copy",
    "finish",
    "first_seen",
    "join",
    "mix",
    "weigh",
]

HIDDEN = -1e30  # the score of what a query may not see


@dataclass(frozen=True)
class Query:
    """One query of a tile: its address, its head, its position, where its result goes and whether it counts.

    last: the last position that it sees.  first: the first, where no window says so.
    largest, total: the largest score so far and the sum of weights, of the block being folded.
    """

    q: Ptr
    head: Value
    position: Value
    last: Value
    out: Ptr
    counts: Value
    largest: Var
    total: Var
    first: Value | None = None


@dataclass(frozen=True)
class Past:
    """What a tile attends to: one head's keys and values by page. weights, sums: the tile's scratch memory.

    table, places: more of it, i64 [PAGE] and i32 [PAGE], for rows from anywhere.
    """

    pages: Ptr
    keys: Ptr
    values: Ptr
    slopes: Ptr
    head: Value
    weights: Ptr
    sums: Ptr
    table: Ptr
    places: Ptr


def first_seen(shape: Shape, position: Value) -> Value:
    """The first position that a windowed query sees; it may be before the first that there is."""
    if not shape.causal:
        return position - shape.window // 2
    return position - (position % shape.window if shape.chunked else shape.window - 1)


def join(
    k: Kernel, shape: Shape, largest: Var, total: Var, sums: Ptr, other: Value, its_total: Value, others: Ptr
) -> None:
    """Fold another part into a running largest score, sum of weights and sums of values."""
    top = maximum(largest.now, other)
    mine, its = exp(largest.now - top), exp(other - top)
    total.set(fma(its_total, its, total.now * mine))
    largest.set(top)
    lanes = gcd(shape.value, LANES)
    for i in k.loop(0, shape.value * 4, lanes * 4):
        kept = sums.load("f32", lanes, i, 4) * mine.splat(lanes)
        sums.store(fma(others.load("f32", lanes, i, 4), its, kept), i, 4)


def clear(k: Kernel, at: Ptr, count: int) -> None:
    lanes = gcd(count, LANES)
    for i in k.loop(0, count * 4, lanes * 4):
        at.store(k.zeros("f32", lanes), i, 4)


def copy(k: Kernel, source: Ptr, target: Ptr, count: int) -> None:
    lanes = gcd(count, LANES)
    for i in k.loop(0, count * 4, lanes * 4):
        target.store(source.load("f32", lanes, i, 4), i, 4)


def weigh(
    k: Kernel,
    shape: Shape,
    queries: Sequence[Query],
    past: Past,
    scores: Sequence[Sequence[Value]],
    places: Sequence[Value],
) -> list[Value]:
    """Weights of a page's positions for each query, f32 [queries, PAGE]; gives what earlier sums shrink by.

    scores: products with keys.  places: positions of the keys, i32 [16] a column.
    """
    factors = []
    for i, (query, columns) in enumerate(zip(queries, scores, strict=True)):
        slope = past.slopes.load("f32", 1, query.head * 4, 4) if shape.alibi else None
        biases = past.slopes.at(query.head * (BIASES * 4)) if shape.biases else None
        found, visible = masked(k, shape, query, columns, places, slope, biases)
        top = found[0]
        for part in found[1:]:
            top = maximum(top, part)
        largest = maximum(query.largest.now, max_lanes(top))
        factor = exp(query.largest.now - largest)
        added = k.zeros("f32", LANES)
        for c, (part, seen) in enumerate(zip(found, visible, strict=True)):
            weight = k.select(seen, exp(part - largest.splat(LANES)), k.zeros("f32", LANES))
            past.weights.store(weight, (i * PAGE + c * LANES) * 4, 4)
            added = added + weight
        query.total.set(query.total.now * factor + sum_lanes(added))
        query.largest.set(largest)
        factors.append(factor)
    return factors


def masked(
    k: Kernel,
    shape: Shape,
    query: Query,
    scores: Sequence[Value],
    places: Sequence[Value],
    slope: Value | None,
    biases: Ptr | None,
) -> tuple[list[Value], list[Value]]:
    """Scaled scores, HIDDEN where the query may not look, and where it may. With biases, places follow each other."""
    found, visible = [], []
    for score, column in zip(scores, places, strict=True):
        score = score * shape.scale
        if shape.softcap:
            score = tanh(score * (1.0 / shape.softcap)) * shape.softcap
        if slope is not None:
            back = column - query.position
            back = back if shape.causal else minimum(back, back * -1)
            score = fma(slope.splat(LANES), back.to("f32"), score)
        if biases is not None:
            away = column[0] - query.position
            start = minimum(maximum(away, k.const("i32", -FAR - LANES)), k.const("i32", FAR)) + (FAR + LANES)
            score = score + biases.load("f32", LANES, start.to("i64") * 4, 4)
        seen = column <= query.last.splat(LANES)
        if query.first is not None:
            seen = k.both(seen, column >= query.first.splat(LANES))
        if shape.window:
            seen = k.both(seen, column >= first_seen(shape, query.position).splat(LANES))
        found.append(k.select(seen, score, k.const("f32", HIDDEN, LANES)))
        visible.append(seen)
    return found, visible


def mix(
    k: Kernel,
    shape: Shape,
    queries: int,
    factors: Sequence[Value],
    rows: Rows,
    seen: Value,
    weights: Ptr,
    sums: Ptr,
) -> None:
    """sums = sums * factor + weights @ values of the first `seen` rows, some columns at a time."""
    lanes = gcd(shape.value, LANES)
    vectors = gcd(shape.value // lanes, COLUMNS if queries <= WIDE else COLUMNS // 2)
    for column in k.loop(0, shape.value, lanes * vectors):
        totals = [
            [
                k.var(
                    sums.load("f32", lanes, (column + (i * shape.value + c * lanes)) * 4, 4)
                    * factors[i].splat(lanes)
                )
                for c in range(vectors)
            ]
            for i in range(queries)
        ]
        for j in k.loop(0, seen):
            parts = value_parts(k, shape.v_kind, rows.at(j), column, lanes, vectors)
            for i in range(queries):
                weight = weights.load("f32", 1, (j + i * PAGE) * 4, 4).splat(lanes)
                for part, total in zip(parts, totals[i], strict=True):
                    total.set(fma(weight, part, total.now))
        for i in range(queries):
            for c in range(vectors):
                sums.store(totals[i][c].now, (column + (i * shape.value + c * lanes)) * 4, 4)


def finish(
    k: Kernel, shape: Shape, args: Ptr, head: Value, largest: Var, total: Var, sums: Ptr, out: Ptr
) -> None:
    """The weighted mean: sums over the sum of weights, the sink's among them."""
    lanes = gcd(shape.value, LANES)
    factor = k.const("f32", 1.0)
    if shape.sinks:
        sink = args.ptr(88).load("f32", 1, head * 4, 4)
        top = maximum(largest.now, sink)
        factor = exp(largest.now - top)
        total.set(fma(total.now, factor, exp(sink - top)))
    inverse = (factor / total.now).splat(lanes)
    for i in k.loop(0, shape.value * 4, lanes * 4):
        out.store(sums.load("f32", lanes, i, 4) * inverse, i, 4)
