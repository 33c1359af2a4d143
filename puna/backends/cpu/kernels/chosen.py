"""Attention to chosen positions, which differ from row to row: their keys and values are read where they lie, by rows.

A row's list is cut into runs of PAGE positions, and these are folded as pages are, in the order of the list.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from puna.backends.cpu.kernels.attention import Item, begin_block, fold_all, past_of, tiles, value_rows
from puna.backends.cpu.kernels.kv import COLUMNS
from puna.backends.cpu.kernels.scores import LANES, Rows, row_scores
from puna.backends.cpu.kernels.shapes import BLOCK, ITEM_BYTES, Shape
from puna.backends.cpu.kernels.softmax import Past, Query, first_seen, mix, weigh
from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.backends.cpu.verbs import fold, maximum
from puna.plan.kv import PAGE
from puna.quants import by_name

__all__ = ["attend_chosen", "fold_run"]

NOWHERE = 2**31 - 1  # a position that no query sees


def attend_chosen(k: Kernel, *, shape: Shape, best: int, tile: int) -> None:
    """A row of an item after another, and a head or a part of its group, a unit.

    args: as `attend`, and 56 the lists, i32 [best] a row, -1 for none, 72 bytes between rows.
    """
    args, begin, end, scratch = k.args
    for unit in k.loop(begin, end):
        item, head = Item.read(args.ptr(48).at(unit // shape.units * ITEM_BYTES)), unit % shape.units
        past = past_of(shape, args, item, head, scratch, tile)
        for row in k.loop(0, item.rows):
            its = replace(item, first=item.first + row, rows=k.const("i64", 1), position=item.position + row)
            chosen = args.ptr(56).at(its.first * args.load("i64", offset=72, align=8))
            count = held(k, chosen, best)
            for queries in tiles(k, shape, args, its, head, tile):

                def fold_one(block: Value) -> None:
                    fold_list(k, shape, queries, past, chosen, count, block)  # noqa: B023

                blocks = k.const("i64", 0), (count + (PAGE * BLOCK - 1)) // (PAGE * BLOCK)
                fold_all(k, shape, args, queries, past, blocks, fold_one)


def held(k: Kernel, chosen: Ptr, best: int) -> Value:
    """The entries of a list up to the last that is a position."""
    lanes = gcd(best, LANES)
    last = k.var(k.zeros("i32", lanes))
    for i in k.loop(0, best, lanes):
        places = k.lanes("i32", range(1, lanes + 1)) if lanes > 1 else k.const("i32", 1)
        places = places + i.to("i32").splat(lanes)
        found = k.select(chosen.load("i32", lanes, i * 4, 4) >= 0, places, k.zeros("i32", lanes))
        last.set(maximum(last.now, found))
    return fold(last.now, maximum).to("i64")


def fold_list(
    k: Kernel, shape: Shape, queries: list[Query], past: Past, chosen: Ptr, count: Value, block: Value
) -> None:
    """Fold a block of a list of `count` positions into the queries' state and sums, from nothing."""
    begin_block(k, shape, queries, past)
    start = block * (BLOCK * PAGE)
    stop = k.select(start + BLOCK * PAGE < count, start + BLOCK * PAGE, count)
    for first in k.loop(start, stop, PAGE):
        left = count - first
        seen = k.select(left < PAGE, left, k.const("i64", PAGE))
        gather(k, shape, queries[0], past, chosen.at(first * 4), seen)
        fold_run(k, shape, queries, past, seen)


def gather(k: Kernel, shape: Shape, query: Query, past: Past, chosen: Ptr, count: Value) -> None:
    """Where the first `count` positions of a list lie; for what the query does not see, its own position's row."""
    for j in k.loop(0, PAGE):
        position = chosen.load("i32", 1, k.select(j < count, j, k.const("i64", 0)) * 4, 4)
        sees = k.both(j < count, k.both(position >= 0, position <= query.last))
        if shape.window:
            sees = k.both(sees, position >= first_seen(shape, query.position))
        past.places.store(k.select(sees, position, k.const("i32", NOWHERE)), j * 4, 4)
        place = k.select(sees, position, query.position).to("i64")
        page = past.pages.load("i32", 1, place // PAGE * 4, 4).to("i64")
        past.table.store((page * shape.heads_kv + past.head) * PAGE + place % PAGE, j * 8, 8)


def fold_run(k: Kernel, shape: Shape, queries: list[Query], past: Past, seen: Value) -> None:
    """Fold the rows that are in the tables of the past, the first `seen` of PAGE, into the queries' state and sums."""
    keys = Rows(past.keys, by_name(shape.k_kind).row_bytes(shape.key), past.table)
    starts = [query.q for query in queries]
    scores = row_scores(k, shape.k_kind, shape.key, keys, seen, starts, past.weights)
    places = [past.places.load("i32", LANES, c * (LANES * 4), 4) for c in range(COLUMNS)]
    factors = weigh(k, shape, queries, past, scores, places)
    rows = value_rows(shape, past.values, past.table)
    mix(k, shape, len(queries), factors, rows, seen, past.weights, past.sums)
