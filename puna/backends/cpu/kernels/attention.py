"""Attention over pages: causal, grouped heads, sliding window, soft cap, online softmax.

A unit of work is one item, some rows of one sequence, with one key/value head. Its queries, the rows times the heads
that share the key/value head, are taken a tile at a time, so that each load of keys and values serves the whole tile.
Pages follow one another in order, whatever the tile, so a query's result does not depend on what stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from puna.backends.cpu.lang import Kernel, Ptr, Value, Var
from puna.backends.cpu.verbs import exp, fma, load_floats, max_lanes, maximum, sum_lanes, tanh
from puna.plan.kv import PAGE
from puna.quants import by_name

__all__ = ["ITEM_BYTES", "Shape", "attend", "attend_scratch"]

ITEM_BYTES = 32  # 0 first row, 8 rows, 16 position of the first row, 24 address of the sequence's pages, i32
LANES = 16
HIDDEN = -1e30  # the score of what a query may not see
SPLIT = PAGE // LANES


@dataclass(frozen=True)
class Shape:
    """What is fixed about a layer's attention. group: query heads that share a key/value head."""

    heads_kv: int
    group: int
    key: int
    value: int
    k_kind: str
    v_kind: str
    scale: float
    window: int
    softcap: float

    @property
    def k_page(self) -> int:
        """Bytes of one head's keys in a page."""
        return self.key * PAGE * by_name(self.k_kind).bytes

    @property
    def v_page(self) -> int:
        return self.value * PAGE * by_name(self.v_kind).bytes


@dataclass(frozen=True)
class Query:
    """One query of a tile: its address, its position, the largest score so far and the sum of weights."""

    q: Ptr
    position: Value
    largest: Var
    total: Var


def attend_scratch(shape: Shape, tile: int) -> int:
    """Bytes of scratch: weights of a page and the running sum of values, for each query of a tile."""
    return tile * 4 * (PAGE + shape.value)


def attend(k: Kernel, *, shape: Shape, tile: int) -> None:
    """args: 0 queries f32, 8 bytes between rows, 16 result f32, 24 bytes between rows, 32 keys, 40 values, 48 items."""
    args, begin, end, scratch = k.args
    queries, out, keys, values = (args.ptr(o) for o in (0, 16, 32, 40))
    q_stride, out_stride = (args.load("i64", offset=o, align=8) for o in (8, 24))
    items = args.ptr(48)
    for unit in k.loop(begin, end):
        item, head = items.at(unit // shape.heads_kv * ITEM_BYTES), unit % shape.heads_kv
        first, rows, position = (item.load("i64", offset=o, align=8) for o in (0, 8, 16))
        pages, count = item.ptr(24), rows * shape.group
        for start in k.loop(0, count, tile):
            places = [k.select(start + i < count, start + i, count - 1) for i in range(tile)]
            tile_rows = [place // shape.group for place in places]
            heads = [head * shape.group + place % shape.group for place in places]
            tile_queries = [
                Query(
                    queries.at((first + row) * q_stride + h * (shape.key * 4)),
                    (position + row).to("i32"),
                    k.var(k.const("f32", HIDDEN)),
                    k.var(k.zeros("f32")),
                )
                for row, h in zip(tile_rows, heads, strict=True)
            ]
            sums = scratch.at(tile * PAGE * 4)
            over_pages(k, shape, tile_queries, pages, keys, values, head, scratch, sums)
            for i, (row, h) in enumerate(zip(tile_rows, heads, strict=True)):
                with k.when(start + i < count):
                    target = out.at((first + row) * out_stride + h * (shape.value * 4))
                    finish(k, shape, tile_queries[i], sums.at(i * shape.value * 4), target)


def over_pages(
    k: Kernel,
    shape: Shape,
    queries: Sequence[Query],
    pages: Ptr,
    keys: Ptr,
    values: Ptr,
    head: Value,
    weights: Ptr,
    sums: Ptr,
) -> None:
    """Fold every page that some query of the tile sees into the running sums, page by page."""
    lanes = gcd(shape.value, LANES)
    for i in k.loop(0, len(queries) * shape.value * 4, lanes * 4):
        sums.store(k.zeros("f32", lanes), i, 4)
    last = queries[-1].position.to("i64")
    first = k.const("i64", 0)
    if shape.window:
        oldest = queries[0].position.to("i64") - (shape.window - 1)
        first = k.select(oldest > 0, oldest, first)
    for page in k.loop(first // PAGE, last // PAGE + 1):
        at = pages.load("i32", 1, page * 4, 4).to("i64") * shape.heads_kv + head
        base = page * PAGE
        factors = weigh(k, shape, queries, keys.at(at * shape.k_page), base.to("i32"), weights)
        left = last + 1 - base
        seen = k.select(left < PAGE, left, k.const("i64", PAGE))
        mix(k, shape, len(queries), factors, values.at(at * shape.v_page), seen, weights, sums)


def weigh(
    k: Kernel, shape: Shape, queries: Sequence[Query], keys: Ptr, base: Value, weights: Ptr
) -> list[Value]:
    """Weights of a page's positions for each query, f32 [queries, PAGE]; gives what earlier sums shrink by."""
    size = by_name(shape.k_kind).bytes
    scores = [[k.var(k.zeros("f32", LANES)) for _ in range(SPLIT)] for _ in queries]
    for d in k.loop(0, shape.key):
        row = keys.at(d * (PAGE * size))
        columns = [load_floats(row, shape.k_kind, LANES, c * LANES * size) for c in range(SPLIT)]
        for query, totals in zip(queries, scores, strict=True):
            q = query.q.load("f32", 1, d * 4, 4).splat(LANES)
            for column, total in zip(columns, totals, strict=True):
                total.set(fma(q, column, total.now))
    factors = []
    for i, (query, totals) in enumerate(zip(queries, scores, strict=True)):
        found, visible = masked(k, shape, query, [t.now for t in totals], base)
        top = found[0]
        for part in found[1:]:
            top = maximum(top, part)
        largest = maximum(query.largest.now, max_lanes(top))
        factor = exp(query.largest.now - largest)
        added = k.zeros("f32", LANES)
        for c, (part, seen) in enumerate(zip(found, visible, strict=True)):
            weight = k.select(seen, exp(part - largest.splat(LANES)), k.zeros("f32", LANES))
            weights.store(weight, (i * PAGE + c * LANES) * 4, 4)
            added = added + weight
        query.total.set(query.total.now * factor + sum_lanes(added))
        query.largest.set(largest)
        factors.append(factor)
    return factors


def masked(
    k: Kernel, shape: Shape, query: Query, scores: Sequence[Value], base: Value
) -> tuple[list[Value], list[Value]]:
    """Scaled scores, HIDDEN where the query may not look, and where it may."""
    found, visible = [], []
    for c, score in enumerate(scores):
        score = score * shape.scale
        if shape.softcap:
            score = tanh(score * (1.0 / shape.softcap)) * shape.softcap
        places = k.lanes("i32", [c * LANES + n for n in range(LANES)]) + base
        seen = places <= query.position.splat(LANES)
        if shape.window:
            seen = k.both(seen, places > (query.position - shape.window).splat(LANES))
        found.append(k.select(seen, score, k.const("f32", HIDDEN, LANES)))
        visible.append(seen)
    return found, visible


def mix(
    k: Kernel,
    shape: Shape,
    queries: int,
    factors: Sequence[Value],
    values: Ptr,
    seen: Value,
    weights: Ptr,
    sums: Ptr,
) -> None:
    """sums = sums * factor + weights @ the page's values, some columns at a time."""
    size, lanes = by_name(shape.v_kind).bytes, gcd(shape.value, LANES)
    vectors = gcd(shape.value // lanes, SPLIT)
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
            row = values.at((j * shape.value + column) * size)
            parts = [load_floats(row, shape.v_kind, lanes, c * lanes * size) for c in range(vectors)]
            for i in range(queries):
                weight = weights.load("f32", 1, (j + i * PAGE) * 4, 4).splat(lanes)
                for part, total in zip(parts, totals[i], strict=True):
                    total.set(fma(weight, part, total.now))
        for i in range(queries):
            for c in range(vectors):
                sums.store(totals[i][c].now, (column + (i * shape.value + c * lanes)) * 4, 4)


def finish(k: Kernel, shape: Shape, query: Query, sums: Ptr, out: Ptr) -> None:
    """The weighted mean: sums over the sum of weights."""
    lanes = gcd(shape.value, LANES)
    inverse = (k.const("f32", 1.0) / query.total.now).splat(lanes)
    for i in k.loop(0, shape.value * 4, lanes * 4):
        out.store(sums.load("f32", lanes, i, 4) * inverse, i, 4)
