"""Attention over pages: causal or both ways, grouped heads, sliding window, soft cap, ALiBi, sinks, online softmax.

A unit of work is one item, some rows of one sequence, with one key/value head, or a part of the query heads that share
it. Its queries, the rows times these heads, are taken a tile at a time, so that each load of keys and values serves
the whole tile.

Pages are folded into blocks of BLOCK pages, and blocks into the result, both in order and at fixed positions. So a
query's result depends neither on what stands beside it nor on whether one thread folds all blocks (`attend`) or
several a block each (`attend_split`, for a few queries over a long past).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from puna.backends.cpu.kernels.kv import COLUMNS
from puna.backends.cpu.kernels.scores import LANES, Rows, column_scores, row_scores
from puna.backends.cpu.kernels.shapes import BLOCK, ITEM_BYTES, Shape, partial_bytes
from puna.backends.cpu.kernels.softmax import (
    HIDDEN,
    Past,
    Query,
    clear,
    copy,
    finish,
    first_seen,
    join,
    mix,
    weigh,
)
from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.plan.kv import PAGE
from puna.quants import by_name

__all__ = ["Item", "attend", "attend_split", "begin_block", "fold_all", "past_of", "tiles", "value_rows"]


@dataclass(frozen=True)
class Item:
    """Some rows of a sequence: the first of them in the step, how many, and its position.

    length: of the sequence.  border: the first position that is decoded.
    """

    first: Value
    rows: Value
    position: Value
    length: Value
    pages: Ptr
    border: Value

    @classmethod
    def read(cls, at: Ptr) -> Item:
        first, rows, position, length, border = (
            at.load("i64", offset=o, align=8) for o in (0, 8, 16, 32, 40)
        )
        return cls(first, rows, position, length, at.ptr(24), border)


def attend(k: Kernel, *, shape: Shape, tile: int) -> None:
    """All blocks of an item, and a head or a part of its group, a unit.

    args: 0 queries f32, 8 bytes between rows, 16 result f32, 24 bytes between rows, 32 keys, 40 values, 48 items;
    80 slopes, f32 a head, or biases, f32 [BIASES] a head, and 88 sinks, f32 a head, where the shape has them.
    """
    args, begin, end, scratch = k.args
    for unit in k.loop(begin, end):
        item, head = Item.read(args.ptr(48).at(unit // shape.units * ITEM_BYTES)), unit % shape.units
        past = past_of(shape, args, item, head, scratch, tile)
        for queries in tiles(k, shape, args, item, head, tile):
            first, last = page_range(k, shape, queries)

            def fold(block: Value) -> None:
                fold_block(k, shape, queries, past, block, first, last)  # noqa: B023

            fold_all(k, shape, args, queries, past, (first // BLOCK, last // BLOCK + 1), fold)


def fold_all(
    k: Kernel,
    shape: Shape,
    args: Ptr,
    queries: Sequence[Query],
    past: Past,
    blocks: tuple[Value, Value],
    fold: Callable[[Value], None],
) -> None:
    """Blocks, from one up to another, of a tile to its results. fold: a block into the queries' state and sums."""
    totals, size = past.sums.at(len(queries) * shape.value * 4), shape.value * 4
    folded = [(k.var(k.const("f32", HIDDEN)), k.var(k.zeros("f32"))) for _ in queries]
    clear(k, totals, len(queries) * shape.value)
    for block in k.loop(*blocks):
        fold(block)
        for i, (query, (largest, total)) in enumerate(zip(queries, folded, strict=True)):
            part, whole = (s.at(i * size) for s in (past.sums, totals))
            join(k, shape, largest, total, whole, query.largest.now, query.total.now, part)
    for i, (query, state) in enumerate(zip(queries, folded, strict=True)):
        with k.when(query.counts):
            finish(k, shape, args, query.head, *state, totals.at(i * size), query.out)


def attend_split(k: Kernel, *, shape: Shape, tile: int) -> None:
    """As `attend`, a block of one item a unit, for items of one row; whoever folds an item's last block joins them all.

    args: as `attend`, then 56 parts, 64 blocks that an item may have, 72 counters, an i64 for each item and head.
    """
    args, begin, end, scratch = k.args
    most = args.load("i64", offset=64, align=8)
    size = partial_bytes(shape.value)
    for unit in k.loop(begin, end):
        place, block = unit // most, unit % most
        item, head = Item.read(args.ptr(48).at(place // shape.units * ITEM_BYTES)), place % shape.units
        past = past_of(shape, args, item, head, scratch, tile)
        blocks = item.position // (PAGE * BLOCK) + 1
        parts = args.ptr(56).at(place * most * (shape.each * size))
        with k.when(block < blocks):
            g = k.var(k.zeros("i64"))
            for queries in tiles(k, shape, args, item, head, tile):
                first, last = page_range(k, shape, queries)
                fold_block(k, shape, queries, past, block, first, last)
                for i, query in enumerate(queries):
                    with k.when(query.counts):
                        part = parts.at((block * shape.each + g.now + i) * size)
                        part.store(query.largest.now, 0, 4)
                        part.store(query.total.now, 4, 4)
                        copy(k, past.sums.at(i * shape.value * 4), part.at(8), shape.value)
                g.set(g.now + tile)
            counter = args.ptr(72).at(place * 8)
            with k.when((k.add_shared(counter, 1) + 1).compare("==", blocks)):
                k.swap_shared(counter, 0)
                join_parts(k, shape, args, item, head, parts, blocks, past.sums)


def join_parts(
    k: Kernel, shape: Shape, args: Ptr, item: Item, head: Value, parts: Ptr, blocks: Value, sums: Ptr
) -> None:
    """All blocks of an item's queries, in order, to their results."""
    size = partial_bytes(shape.value)
    row = item.first * args.load("i64", offset=24, align=8)
    for g in k.loop(0, shape.each):
        largest, total = k.var(k.const("f32", HIDDEN)), k.var(k.zeros("f32"))
        clear(k, sums, shape.value)
        for block in k.loop(0, blocks):
            part = parts.at((block * shape.each + g) * size)
            its = part.load("f32", 1, 0, 4), part.load("f32", 1, 4, 4)
            join(k, shape, largest, total, sums, *its, part.at(8))
        out = args.ptr(16).at(row + (head * shape.each + g) * (shape.value * 4))
        finish(k, shape, args, head * shape.each + g, largest, total, sums, out)


def past_of(shape: Shape, args: Ptr, item: Item, head: Value, scratch: Ptr, tile: int) -> Past:
    """head: one of a shape's units."""
    sums = scratch.at(tile * PAGE * 4)
    table = sums.at(tile * 2 * shape.value * 4)
    caches = args.ptr(32), args.ptr(32 if shape.shared else 40)
    lists = table, table.at(PAGE * 8)
    return Past(item.pages, *caches, args.ptr(80), head // shape.parts, scratch, sums, *lists)


def tiles(k: Kernel, shape: Shape, args: Ptr, item: Item, head: Value, tile: int) -> Iterator[list[Query]]:
    """The queries of an item and a head, `tile` at a time; the last tile is filled up with one that does not count."""
    queries, out = args.ptr(0), args.ptr(16)
    q_stride, out_stride = (args.load("i64", offset=o, align=8) for o in (8, 24))
    length, border = (item.border if shape.part == "memory" else item.length).to("i32"), item.border.to("i32")
    oldest = border if shape.part == "decoder" else None
    count = item.rows * shape.each
    for start in k.loop(0, count, tile):
        made = []
        for i in range(tile):
            place = k.select(start + i < count, start + i, count - 1)
            row, h = place // shape.each, head * shape.each + place % shape.each
            q = queries.at((item.first + row) * q_stride + h * (shape.key * 4))
            target = out.at((item.first + row) * out_stride + h * (shape.value * 4))
            state = k.var(k.const("f32", HIDDEN)), k.var(k.zeros("f32"))
            own = (item.position + row).to("i32")
            last = own if shape.causal else last_seen(k, shape, own, length)
            made.append(Query(q, h, own, last, target, start + i < count, *state, oldest))
        yield made


def page_range(k: Kernel, shape: Shape, queries: Sequence[Query]) -> tuple[Value, Value]:
    """The first and the last page that some query of a tile sees; positions ascend."""
    last, border = queries[-1].last.to("i64"), queries[0].first
    if border is not None:
        return border.to("i64") // PAGE, last // PAGE
    if not shape.window:
        return k.const("i64", 0), last // PAGE
    oldest = first_seen(shape, queries[0].position).to("i64")
    return k.select(oldest > 0, oldest, k.const("i64", 0)) // PAGE, last // PAGE


def last_seen(k: Kernel, shape: Shape, position: Value, length: Value) -> Value:
    """The last position that a query sees which looks both ways."""
    if not shape.window:
        return length - 1
    reach = position + shape.window // 2
    return k.select(reach < length, reach, length - 1)


def begin_block(k: Kernel, shape: Shape, queries: Sequence[Query], past: Past) -> None:
    """The queries' state and sums of nothing."""
    for query in queries:
        query.largest.set(k.const("f32", HIDDEN))
        query.total.set(k.zeros("f32"))
    clear(k, past.sums, len(queries) * shape.value)


def fold_block(
    k: Kernel, shape: Shape, queries: Sequence[Query], past: Past, block: Value, first: Value, last: Value
) -> None:
    """Fold a block's pages, of those between `first` and `last`, into the queries' state and sums, from nothing."""
    begin_block(k, shape, queries, past)
    start, stop = block * BLOCK, block * BLOCK + BLOCK
    start = k.select(start > first, start, first)
    stop = k.select(stop <= last, stop, last + 1)
    ends = queries[-1].last.to("i64") + 1
    for page in k.loop(start, stop):
        at = past.pages.load("i32", 1, page * 4, 4).to("i64") * shape.heads_kv + past.head
        base = page * PAGE
        left = ends - base
        seen = k.select(left < PAGE, left, k.const("i64", PAGE))
        keys, starts = past.keys.at(at * shape.k_page), [query.q for query in queries]
        if shape.by_rows:
            rows = Rows(keys, by_name(shape.k_kind).row_bytes(shape.key))
            scores = row_scores(k, shape.k_kind, shape.key, rows, seen, starts, past.weights)
        else:
            scores = column_scores(k, shape.k_kind, shape.key, keys, starts)
        places = [
            k.lanes("i32", [c * LANES + n for n in range(LANES)]) + base.to("i32") for c in range(COLUMNS)
        ]
        factors = weigh(k, shape, queries, past, scores, places)
        page_values = past.values.at(at * (shape.k_page if shape.shared else shape.v_page))
        rows = value_rows(shape, page_values)
        mix(k, shape, len(queries), factors, rows, seen, past.weights, past.sums)


def value_rows(shape: Shape, values: Ptr, table: Ptr | None = None) -> Rows:
    """Values from an address on, or of the rows in a table."""
    size = shape.key if shape.shared else shape.value
    return Rows(values, by_name(shape.v_kind).row_bytes(size), table)
