"""The choice of the positions that a row attends to: those that light heads score best.

First the scores of all keys so far, sum over h of w[h] * relu(q[h] . key), as whole numbers that are in the same order.
Then the largest threshold that enough of them reach, a bit at a time, and in one more walk what lies above it, and of
what is equal to it the first. So the chosen come in ascending order, and a row's depend on nothing beside it.

Where whole blocks of positions are chosen, a key's score is its largest product with a head, and that of a block the
largest of its keys'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from puna.backends.cpu.kernels.attention import Item
from puna.backends.cpu.kernels.kv import COLUMNS, page_bytes
from puna.backends.cpu.kernels.scores import LANES, Rows, column_scores, row_scores
from puna.backends.cpu.kernels.shapes import BLOCK, ITEM_BYTES
from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.backends.cpu.verbs import fma, maximum, sum_lanes
from puna.plan.kv import PAGE
from puna.quants import by_name

__all__ = ["Choice", "index", "index_scratch", "index_split"]


@dataclass(frozen=True)
class Choice:
    """What is fixed about a choice. heads: that score.  size: of a key.  best: how many are chosen.

    every: positions to a key; of more than one, keys lie by rows.
    block: keys that are chosen together; of more than one, the last `local` blocks always are.
    """

    heads: int
    size: int
    kind: str
    best: int
    every: int = 1
    block: int = 1
    local: int = 0

    @property
    def length(self) -> int:
        """Entries of a row's list."""
        return self.best * self.block

    @property
    def units(self) -> int:
        """Units of work of an item."""
        return 1

    @property
    def each(self) -> int:
        """Queries of a unit and a row that have results of their own."""
        return 1


def index_scratch(tile: int, positions: int) -> int:
    """Bytes of scratch: products of a tile of heads with a page, the page's rows, the scores of all positions."""
    return tile * PAGE * 4 + PAGE * 8 + positions * 4


def index(k: Kernel, *, choice: Choice, tile: int) -> None:
    """All rows of an item a unit.

    args: 0 queries f32, 8 bytes between rows, 16 result i32 [length], 24 bytes between rows, 32 keys,
    40 weights of heads f32, 48 items, 80 bytes between rows of weights; blocks are chosen without weights.
    """
    args, begin, end, scratch = k.args
    scores = scratch.at(index_scratch(tile, 0))
    for unit in k.loop(begin, end):
        item = Item.read(args.ptr(48).at(unit * ITEM_BYTES))
        for row in k.loop(0, item.rows):
            count = (item.position + row + 1) // choice.every
            with k.when(count > choice.length):
                for page in k.loop(0, (count + (PAGE - 1)) // PAGE):
                    score_page(k, choice, tile, args, item, row, page, count, scores)
            answer(k, choice, args, item.first + row, scores, count)


def index_split(k: Kernel, *, choice: Choice, tile: int) -> None:
    """A block of one item's keys a unit, for items of one row; whoever scores an item's last block chooses.

    args: as `index`, then 56 scores, 64 blocks that an item may have, 72 counters, an i64 for each item, 88 bytes of
    the scores of an item.
    """
    args, begin, end, _ = k.args
    most = args.load("i64", offset=64, align=8)
    for unit in k.loop(begin, end):
        place, block = unit // most, unit % most
        item = Item.read(args.ptr(48).at(place * ITEM_BYTES))
        count = (item.position + 1) // choice.every
        pages = (count + (PAGE - 1)) // PAGE
        blocks = k.select(pages > 0, (pages - 1) // BLOCK + 1, k.const("i64", 1))
        scores = args.ptr(56).at(place * args.load("i64", offset=88, align=8))
        with k.when(block < blocks):
            with k.when(count > choice.length):
                last = k.select(pages < (block + 1) * BLOCK, pages, (block + 1) * BLOCK)
                for page in k.loop(block * BLOCK, last):
                    score_page(k, choice, tile, args, item, k.const("i64", 0), page, count, scores)
            counter = args.ptr(72).at(place * 8)
            with k.when((k.add_shared(counter, 1) + 1).compare("==", blocks)):
                k.swap_shared(counter, 0)
                answer(k, choice, args, item.first, scores, count)


def score_page(
    k: Kernel,
    choice: Choice,
    tile: int,
    args: Ptr,
    item: Item,
    row: Value,
    page: Value,
    count: Value,
    scores: Ptr,
) -> None:
    """The scores of a row with PAGE keys, u32: in the order of the floats, but NaN, and what is not there, are 0."""
    scratch = k.args[3]
    queries = args.ptr(0).at((item.first + row) * args.load("i64", offset=8, align=8))
    left = count - page * PAGE
    seen = k.select(left < PAGE, left, k.const("i64", PAGE))
    rows = key_rows(k, choice, args, item, page, count, scratch.at(tile * PAGE * 4))
    start = 0.0 if choice.block == 1 else float("-inf")
    totals = [k.var(k.const("f32", start, LANES)) for _ in range(COLUMNS)]
    for h in k.loop(0, choice.heads, tile):
        starts = [queries.at((h + i) * (choice.size * 4)) for i in range(tile)]
        if isinstance(rows, Rows):
            found = row_scores(k, choice.kind, choice.size, rows, seen, starts, scratch)
        else:
            found = column_scores(k, choice.kind, choice.size, rows, starts)
        for i, products in enumerate(found):
            if choice.block > 1:
                for total, product in zip(totals, products, strict=True):
                    total.set(maximum(total.now, product))
                continue
            weights = args.ptr(40).at((item.first + row) * args.load("i64", offset=80, align=8))
            weight = weights.load("f32", 1, (h + i) * 4, 4).splat(LANES)
            for total, product in zip(totals, products, strict=True):
                total.set(fma(weight, maximum(k.zeros("f32", LANES), product), total.now))
    for c, total in enumerate(totals):
        places = k.lanes("i64", range(c * LANES, (c + 1) * LANES))
        there = places < left.splat(LANES)
        score = k.select(there, ordered(total.now), k.zeros("u32", LANES))
        scores.store(score, page * (PAGE * 4) + c * LANES * 4, 4)


def key_rows(
    k: Kernel, choice: Choice, args: Ptr, item: Item, page: Value, count: Value, table: Ptr
) -> Rows | Ptr:
    """A page of keys: by columns, or the rows of as many keys of several positions each."""
    keys, every = args.ptr(32), choice.every
    if every == 1:
        number = item.pages.load("i32", 1, page * 4, 4).to("i64")
        return keys.at(number * page_bytes(choice.kind, choice.size))
    for j in k.loop(0, PAGE):
        block = page * PAGE + j
        place = k.select(block < count, block, count - 1) * every + (every - 1)
        number = item.pages.load("i32", 1, place // PAGE * 4, 4).to("i64")
        table.store(number * -(-PAGE // every) + place % PAGE // every, j * 8, 8)
    return Rows(keys, by_name(choice.kind).row_bytes(choice.size), table)


def ordered(x: Value) -> Value:
    """Whole numbers, u32, in the order of floats; 0 and -0 are equal, NaN is least."""
    k, bits = x.k, (x + 0.0).as_("u32")
    top, every = k.const("u32", 1 << 31, x.lanes), k.const("u32", 2**32 - 1, x.lanes)
    number = bits ^ k.select(bits >= 1 << 31, every, top)
    return k.select(x.compare("==", x), number, k.zeros("u32", x.lanes))


def answer(k: Kernel, choice: Choice, args: Ptr, row: Value, scores: Ptr, count: Value) -> None:
    """The chosen of `count` keys to a row of the result: all of them where there are no more than are chosen."""
    target, block = args.ptr(16).at(row * args.load("i64", offset=24, align=8)), choice.block

    def put(n: Value, place: Value) -> None:
        if block == 1:
            target.store(place.to("i32"), n * 4, 4)
            return
        for i in k.loop(0, block):
            key = place * block + i
            target.store(k.select(key < count, key, k.const("i64", -1)).to("i32"), (n * block + i) * 4, 4)

    with k.when(count > choice.length):
        found = count if block == 1 else best_of_blocks(k, choice, scores, count)
        choose(k, choice.best, scores, found, put)
    with k.when(count <= choice.length):
        lanes = gcd(choice.length, LANES)
        counted = k.lanes("i32", range(lanes)) if lanes > 1 else k.zeros("i32")
        for i in k.loop(0, choice.length, lanes):
            places = counted + i.to("i32").splat(lanes)
            there = places < count.to("i32").splat(lanes)
            target.store(k.select(there, places, k.const("i32", -1, lanes)), i * 4, 4)


def best_of_blocks(k: Kernel, choice: Choice, scores: Ptr, count: Value) -> Value:
    """The largest score of each block, in the place of the first scores; gives how many. The last are best of all."""
    size = choice.block
    blocks = (count + (size - 1)) // size
    for b in k.loop(0, blocks):
        best, stop = k.var(k.zeros("u32")), (b + 1) * size
        for j in k.loop(b * size, k.select(stop < count, stop, count)):
            score = scores.load("u32", 1, j * 4, 4)
            best.set(k.select(score > best.now, score, best.now))
        is_last = b + choice.local >= blocks
        scores.store(k.select(is_last, k.const("u32", 2**32 - 2), best.now), b * 4, 4)
    scores.store(k.zeros("u32", LANES), blocks * 4, 4)  # what fills up the last vector
    return blocks


def choose(k: Kernel, best: int, scores: Ptr, count: Value, put: Callable[[Value, Value], None]) -> None:
    """Give the `best` largest of `count` scores, u32, more than that: put(number, place); of equal ones the first."""
    threshold = k.var(k.zeros("u32"))
    for bit in k.loop(0, 32):
        higher = threshold.now | (k.const("u32", 1) << (k.const("i64", 31) - bit).to("u32"))
        enough = reached(k, scores, count, higher) >= best
        threshold.set(k.select(enough, higher, threshold.now))
    least = threshold.now
    equal = k.var(k.const("i32", best) - reached(k, scores, count, least + 1))
    found = k.var(k.zeros("i64"))
    for j in k.loop(0, count):
        score = scores.load("u32", 1, j * 4, 4)
        with k.when(k.either(score > least, k.both(score.compare("==", least), equal.now > 0))):
            put(found.now, j)
            found.set(found.now + 1)
            equal.set(k.select(score > least, equal.now, equal.now - 1))


def reached(k: Kernel, scores: Ptr, count: Value, least: Value) -> Value:
    """How many of the scores, in whole pages, are no less than a number above 0: i32."""
    found = k.var(k.zeros("i32", LANES))
    one, none = k.const("i32", 1, LANES), k.zeros("i32", LANES)
    for i in k.loop(0, count, LANES):
        reaches = scores.load("u32", LANES, i * 4, 4) >= least.splat(LANES)
        found.set(found.now + k.select(reaches, one, none))
    return sum_lanes(found.now)
