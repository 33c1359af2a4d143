"""Attention to a window of one cache, and to blocks of another that are pooled into a row each, under one softmax.

The window's pages are folded as in `attend`, then the blocks, or those that are chosen, in runs of PAGE as in
`attend_chosen`. Both caches lie by rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from puna.backends.cpu.kernels.attention import (
    Item,
    begin_block,
    fold_all,
    fold_block,
    page_range,
    past_of,
    tiles,
)
from puna.backends.cpu.kernels.chosen import NOWHERE, fold_run
from puna.backends.cpu.kernels.shapes import BLOCK, ITEM_BYTES, Shape
from puna.backends.cpu.kernels.softmax import Past, Query
from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.backends.cpu.verbs import minimum
from puna.plan.kv import PAGE

__all__ = ["Blocks", "attend_both"]


@dataclass(frozen=True)
class Blocks:
    """The other cache. every: positions of a block.  rows: of a page.  chosen: most that are, 0 for all there are."""

    every: int
    rows: int
    chosen: int

    def row(self, pages: Ptr, block: Value) -> Value:
        """The number of a block's row, which lies in the page of its last position."""
        last = block * self.every + (self.every - 1)
        page = pages.load("i32", 1, last // PAGE * 4, 4).to("i64")
        return page * self.rows + last % PAGE // self.every


def attend_both(k: Kernel, *, shape: Shape, blocks: Blocks, tile: int) -> None:
    """A row of an item after another, and a part of the heads, a unit.

    args: as `attend`, of the window's cache; 96 keys of blocks, 104 their values, 112 their items, and 120 the lists
    of those that are chosen, i32 a row.
    """
    args, begin, end, scratch = k.args
    for unit in k.loop(begin, end):
        place, head = unit // shape.units * ITEM_BYTES, unit % shape.units
        item = Item.read(args.ptr(48).at(place))
        past = past_of(shape, args, item, head, scratch, tile)
        caches = {"keys": args.ptr(96), "values": args.ptr(96 if shape.shared else 104)}
        theirs = replace(past, pages=args.ptr(112).at(place).ptr(24), **caches)
        for row in k.loop(0, item.rows):
            its = replace(item, first=item.first + row, rows=k.const("i64", 1), position=item.position + row)
            chosen, count = None, (its.position + 1) // blocks.every
            if blocks.chosen:
                chosen = args.ptr(120).at(its.first * (blocks.chosen * 4))
                count = minimum(count, k.const("i64", blocks.chosen))
            for queries in tiles(k, shape, args, its, head, tile):
                first, last = page_range(k, shape, queries)
                border = last // BLOCK + 1

                def fold(block: Value) -> None:
                    with k.when(block < border):  # noqa: B023
                        fold_block(k, shape, queries, past, block, first, last)  # noqa: B023
                    with k.when(block >= border):  # noqa: B023
                        start = (block - border) * (BLOCK * PAGE)  # noqa: B023
                        fold_list(k, shape, queries, theirs, blocks, chosen, (start, count))  # noqa: B023

                ends = border + (count + (PAGE * BLOCK - 1)) // (PAGE * BLOCK)
                fold_all(k, shape, args, queries, past, (first // BLOCK, ends), fold)


def fold_list(
    k: Kernel,
    shape: Shape,
    queries: Sequence[Query],
    past: Past,
    blocks: Blocks,
    chosen: Ptr | None,
    span: tuple[Value, Value],
) -> None:
    """Fold BLOCK * PAGE of the cache's blocks, those from one up to another of the chosen, or of all, from nothing."""
    begin_block(k, shape, queries, past)
    start, count = span
    for first in k.loop(start, minimum(start + BLOCK * PAGE, count), PAGE):
        seen = minimum(count - first, k.const("i64", PAGE))
        for j in k.loop(0, PAGE):
            place = first + minimum(j, seen - 1)
            block = chosen.load("i32", 1, place * 4, 4).to("i64") if chosen else place
            past.table.store(blocks.row(past.pages, block), j * 8, 8)
            past.places.store(k.select(j < seen, k.zeros("i32"), k.const("i32", NOWHERE)), j * 4, 4)
        fold_run(k, replace(shape, window=0), list(queries), past, seen)
