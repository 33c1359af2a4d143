"""Attention over pages: causal or both ways, grouped heads, sliding window, soft cap, ALiBi, sinks, online softmax.

A unit of work is one item, some rows of one sequence, with one key/value head. Its queries, the rows times the heads
that share the key/value head, are taken a tile at a time, so that each load of keys and values serves the whole tile.

Pages are folded into blocks of BLOCK pages, and blocks into the result, both in order and at fixed positions. So a
query's result depends neither on what stands beside it nor on whether one thread folds all blocks (`attend`) or
several a block each (`attend_split`, for a few queries over a long past).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from puna.backends.cpu.kernels.kv import COLUMNS, key_columns, page_bytes, value_parts
from puna.backends.cpu.lang import Kernel, Ptr, Value, Var
from puna.backends.cpu.verbs import exp, fma, max_lanes, maximum, minimum, sum_lanes, tanh
from puna.plan.kv import PAGE, KVLayout
from puna.quants import by_name

__all__ = [
    "BLOCK",
    "ITEM_BYTES",
    "MOST_GROUP",
    "Shape",
    "attend",
    "attend_scratch",
    "attend_split",
    "parts_bytes",
    "split_units",
]

ITEM_BYTES = (
    40  # 0 first row, 8 rows, 16 position of the first row, 24 the sequence's pages, i32, 32 its length
)
LANES = 16
HIDDEN = -1e30  # the score of what a query may not see
BLOCK = 8  # pages of a block
MOST_GROUP = 16  # query heads to a key/value head, up to which memory for `attend_split` is planned


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
    alibi: bool = False
    sinks: bool = False
    chunked: bool = False
    causal: bool = True

    @property
    def k_page(self) -> int:
        """Bytes of one head's keys in a page."""
        return page_bytes(self.k_kind, self.key)

    @property
    def v_page(self) -> int:
        return page_bytes(self.v_kind, self.value)


@dataclass(frozen=True)
class Query:
    """One query of a tile: its address, its head, its position, where its result goes and whether it counts.

    last: the last position that it sees.
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


@dataclass(frozen=True)
class Past:
    """What a tile attends to: one head's keys and values by page. weights, sums: the tile's scratch memory."""

    pages: Ptr
    keys: Ptr
    values: Ptr
    slopes: Ptr
    head: Value
    weights: Ptr
    sums: Ptr


def attend_scratch(shape: Shape, tile: int) -> int:
    """Bytes of scratch for each query of a tile: weights of a page, sums of values of a block and of all."""
    return tile * 4 * (PAGE + 2 * shape.value)


def partial_bytes(value: int) -> int:
    """Bytes of one query's part of a block: largest score, sum of weights, sums of values, in whole vectors."""
    return -(-(2 + value) * 4 // 64) * 64


def split_units(threads: int) -> int:
    """Most items times heads for which `attend_split` is worth its while: more keep all threads busy by themselves."""
    return 2 * threads


def parts_bytes(kv: KVLayout, threads: int) -> int:
    """Bytes of all the parts that `attend_split` may have to keep."""
    blocks = -(-kv.positions // (PAGE * BLOCK))
    largest = max((value for _, _, value in kv.widths.values()), default=0)
    return split_units(threads) * blocks * MOST_GROUP * partial_bytes(largest)


def attend(k: Kernel, *, shape: Shape, tile: int) -> None:
    """All blocks of an item and a head a unit.

    args: 0 queries f32, 8 bytes between rows, 16 result f32, 24 bytes between rows, 32 keys, 40 values, 48 items;
    80 slopes and 88 sinks, f32 a head, where the shape has them.
    """
    args, begin, end, scratch = k.args
    for unit in k.loop(begin, end):
        item, head = args.ptr(48).at(unit // shape.heads_kv * ITEM_BYTES), unit % shape.heads_kv
        past = past_of(shape, args, item, head, scratch, tile)
        totals = past.sums.at(tile * shape.value * 4)
        for queries in tiles(k, shape, args, item, head, tile):
            first, last = page_range(k, shape, queries)
            folded = [(k.var(k.const("f32", HIDDEN)), k.var(k.zeros("f32"))) for _ in queries]
            clear(k, totals, tile * shape.value)
            for block in k.loop(first // BLOCK, last // BLOCK + 1):
                fold_block(k, shape, queries, past, block, first, last)
                for i, (query, (largest, total)) in enumerate(zip(queries, folded, strict=True)):
                    part, whole = (s.at(i * shape.value * 4) for s in (past.sums, totals))
                    join(k, shape, largest, total, whole, query.largest.now, query.total.now, part)
            for i, (query, state) in enumerate(zip(queries, folded, strict=True)):
                with k.when(query.counts):
                    finish(k, shape, args, query.head, *state, totals.at(i * shape.value * 4), query.out)


def attend_split(k: Kernel, *, shape: Shape, tile: int) -> None:
    """As `attend`, a block of one item a unit, for items of one row; whoever folds an item's last block joins them all.

    args: as `attend`, then 56 parts, 64 blocks that an item may have, 72 counters, an i64 for each item and head.
    """
    args, begin, end, scratch = k.args
    most = args.load("i64", offset=64, align=8)
    size = partial_bytes(shape.value)
    for unit in k.loop(begin, end):
        place, block = unit // most, unit % most
        item, head = args.ptr(48).at(place // shape.heads_kv * ITEM_BYTES), place % shape.heads_kv
        past = past_of(shape, args, item, head, scratch, tile)
        position = item.load("i64", offset=16, align=8)
        blocks = position // (PAGE * BLOCK) + 1
        parts = args.ptr(56).at(place * most * (shape.group * size))
        with k.when(block < blocks):
            g = k.var(k.zeros("i64"))
            for queries in tiles(k, shape, args, item, head, tile):
                first, last = page_range(k, shape, queries)
                fold_block(k, shape, queries, past, block, first, last)
                for i, query in enumerate(queries):
                    with k.when(query.counts):
                        part = parts.at((block * shape.group + g.now + i) * size)
                        part.store(query.largest.now, 0, 4)
                        part.store(query.total.now, 4, 4)
                        copy(k, past.sums.at(i * shape.value * 4), part.at(8), shape.value)
                g.set(g.now + tile)
            counter = args.ptr(72).at(place * 8)
            with k.when((k.add_shared(counter, 1) + 1).compare("==", blocks)):
                k.swap_shared(counter, 0)
                join_parts(k, shape, args, item, head, parts, blocks, past.sums)


def join_parts(
    k: Kernel, shape: Shape, args: Ptr, item: Ptr, head: Value, parts: Ptr, blocks: Value, sums: Ptr
) -> None:
    """All blocks of an item's queries, in order, to their results."""
    size = partial_bytes(shape.value)
    row = item.load("i64", align=8) * args.load("i64", offset=24, align=8)
    for g in k.loop(0, shape.group):
        largest, total = k.var(k.const("f32", HIDDEN)), k.var(k.zeros("f32"))
        clear(k, sums, shape.value)
        for block in k.loop(0, blocks):
            part = parts.at((block * shape.group + g) * size)
            its = part.load("f32", 1, 0, 4), part.load("f32", 1, 4, 4)
            join(k, shape, largest, total, sums, *its, part.at(8))
        out = args.ptr(16).at(row + (head * shape.group + g) * (shape.value * 4))
        finish(k, shape, args, head * shape.group + g, largest, total, sums, out)


def past_of(shape: Shape, args: Ptr, item: Ptr, head: Value, scratch: Ptr, tile: int) -> Past:
    sums = scratch.at(tile * PAGE * 4)
    return Past(item.ptr(24), args.ptr(32), args.ptr(40), args.ptr(80), head, scratch, sums)


def tiles(k: Kernel, shape: Shape, args: Ptr, item: Ptr, head: Value, tile: int) -> Iterator[list[Query]]:
    """The queries of an item and a head, `tile` at a time; the last tile is filled up with one that does not count."""
    queries, out = args.ptr(0), args.ptr(16)
    q_stride, out_stride = (args.load("i64", offset=o, align=8) for o in (8, 24))
    first, rows, position = (item.load("i64", offset=o, align=8) for o in (0, 8, 16))
    length = item.load("i64", offset=32, align=8).to("i32")
    count = rows * shape.group
    for start in k.loop(0, count, tile):
        made = []
        for i in range(tile):
            place = k.select(start + i < count, start + i, count - 1)
            row, h = place // shape.group, head * shape.group + place % shape.group
            q = queries.at((first + row) * q_stride + h * (shape.key * 4))
            target = out.at((first + row) * out_stride + h * (shape.value * 4))
            state = k.var(k.const("f32", HIDDEN)), k.var(k.zeros("f32"))
            own = (position + row).to("i32")
            last = own if shape.causal else last_seen(k, shape, own, length)
            made.append(Query(q, h, own, last, target, start + i < count, *state))
        yield made


def page_range(k: Kernel, shape: Shape, queries: Sequence[Query]) -> tuple[Value, Value]:
    """The first and the last page that some query of a tile sees; positions ascend."""
    last = queries[-1].last.to("i64")
    if not shape.window:
        return k.const("i64", 0), last // PAGE
    oldest = first_seen(shape, queries[0].position).to("i64")
    return k.select(oldest > 0, oldest, k.const("i64", 0)) // PAGE, last // PAGE


def first_seen(shape: Shape, position: Value) -> Value:
    """The first position that a windowed query sees; it may be before the first that there is."""
    if not shape.causal:
        return position - shape.window // 2
    return position - (position % shape.window if shape.chunked else shape.window - 1)


def last_seen(k: Kernel, shape: Shape, position: Value, length: Value) -> Value:
    """The last position that a query sees which looks both ways."""
    if not shape.window:
        return length - 1
    reach = position + shape.window // 2
    return k.select(reach < length, reach, length - 1)


def fold_block(
    k: Kernel, shape: Shape, queries: Sequence[Query], past: Past, block: Value, first: Value, last: Value
) -> None:
    """Fold a block's pages, of those between `first` and `last`, into the queries' state and sums, from nothing."""
    for query in queries:
        query.largest.set(k.const("f32", HIDDEN))
        query.total.set(k.zeros("f32"))
    clear(k, past.sums, len(queries) * shape.value)
    start, stop = block * BLOCK, block * BLOCK + BLOCK
    start = k.select(start > first, start, first)
    stop = k.select(stop <= last, stop, last + 1)
    ends = queries[-1].last.to("i64") + 1
    for page in k.loop(start, stop):
        at = past.pages.load("i32", 1, page * 4, 4).to("i64") * shape.heads_kv + past.head
        base = page * PAGE
        factors = weigh(k, shape, queries, past, past.keys.at(at * shape.k_page), base.to("i32"))
        left = ends - base
        seen = k.select(left < PAGE, left, k.const("i64", PAGE))
        mix(k, shape, len(queries), factors, past.values.at(at * shape.v_page), seen, past.weights, past.sums)


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
    k: Kernel, shape: Shape, queries: Sequence[Query], past: Past, keys: Ptr, base: Value
) -> list[Value]:
    """Weights of a page's positions for each query, f32 [queries, PAGE]; gives what earlier sums shrink by."""
    scores = [[k.var(k.zeros("f32", LANES)) for _ in range(COLUMNS)] for _ in queries]
    for d, columns in key_columns(k, shape.k_kind, shape.key, keys):
        for query, totals in zip(queries, scores, strict=True):
            q = query.q.load("f32", 1, d * 4, 4).splat(LANES)
            for column, total in zip(columns, totals, strict=True):
                total.set(fma(q, column, total.now))
    factors = []
    for i, (query, totals) in enumerate(zip(queries, scores, strict=True)):
        slope = past.slopes.load("f32", 1, query.head * 4, 4) if shape.alibi else None
        found, visible = masked(k, shape, query, [t.now for t in totals], base, slope)
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
    k: Kernel, shape: Shape, query: Query, scores: Sequence[Value], base: Value, slope: Value | None
) -> tuple[list[Value], list[Value]]:
    """Scaled scores, HIDDEN where the query may not look, and where it may."""
    found, visible = [], []
    for c, score in enumerate(scores):
        score = score * shape.scale
        if shape.softcap:
            score = tanh(score * (1.0 / shape.softcap)) * shape.softcap
        places = k.lanes("i32", [c * LANES + n for n in range(LANES)]) + base
        if slope is not None:
            back = places - query.position
            back = back if shape.causal else minimum(back, back * -1)
            score = fma(slope.splat(LANES), back.to("f32"), score)
        seen = places <= query.last.splat(LANES)
        if shape.window:
            seen = k.both(seen, places >= first_seen(shape, query.position).splat(LANES))
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
    size, lanes = by_name(shape.v_kind).row_bytes(shape.value), gcd(shape.value, LANES)
    vectors = gcd(shape.value // lanes, COLUMNS)
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
            parts = value_parts(k, shape.v_kind, values.at(j * size), column, lanes, vectors)
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
