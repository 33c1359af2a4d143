"""Row operations of mixtures of experts: who is chosen, with what share, and the sum of what the chosen say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import gcd
from typing import TYPE_CHECKING

from puna.backends.cpu.lang import Ptr, Value
from puna.backends.cpu.verbs import exp, fold, max_lanes, maximum, minimum, sum_lanes

if TYPE_CHECKING:
    from puna.backends.cpu.kernels.rows import Row

__all__ = ["MIXTURE"]

LANES = 16
LOWEST = float("-inf")
NOWHERE = 0x7FFFFFFF


def runs(row: Row) -> Iterator[tuple[Ptr, Ptr]]:
    """Where each run of the last dimension begins, in the first input and in the output."""
    for start in row.k.loop(0, row.count * 4, row.width * 4):
        yield row.input(0).at(start), row.out.at(start)


def total(row: Row, at: Ptr, of: Callable[[Value], Value] = lambda x: x) -> Value:
    """Sum of `of(x)` over a run, in a fixed order."""
    found = row.k.var(row.k.zeros("f32", gcd(row.width, LANES)))
    for i, n in row.vectors(row.width):
        found.set(found.now + of(at.load("f32", n, i, 4)))
    return sum_lanes(found.now)


def softmax(row: Row) -> None:
    k = row.k
    for x, out in runs(row):
        most = k.var(k.const("f32", LOWEST, gcd(row.width, LANES)))
        for i, n in row.vectors(row.width):
            most.set(maximum(x.load("f32", n, i, 4), most.now))
        highest = max_lanes(most.now)
        for i, n in row.vectors(row.width):
            out.store(exp(x.load("f32", n, i, 4) - highest.splat(n)), i, 4)
        divide(row, out, out, total(row, out))


def share(row: Row) -> None:
    for x, out in runs(row):
        divide(row, x, out, total(row, x))


def divide(row: Row, x: Ptr, out: Ptr, by: Value) -> None:
    for i, n in row.vectors(row.width):
        out.store(x.load("f32", n, i, 4) / by.splat(n), i, 4)


def top(row: Row) -> None:
    """The k largest, one after another: each is the largest of those that come after the one before.

    a comes after b if it is smaller, or equal and further on.
    """
    k, count, used = row.k, row.op.inputs[0].shape[-1], row.op.out.shape[-1]
    for start in k.loop(0, row.count // used):
        x, out = row.input(0).at(start * (count * 4)), row.out.at(start * (used * 4))
        value, place = k.var(k.const("f32", float("inf"))), k.var(k.const("i32", -1))
        for e in k.loop(0, used):
            found = largest_after(row, x, count, value.now, place.now)
            value.set(found[0])
            place.set(found[1])
            out.store(found[1], e * 4, 4)


def largest_after(row: Row, x: Ptr, count: int, value: Value, place: Value) -> tuple[Value, Value]:
    """The largest of `count` values that comes after (value, place), and where it is; place 0 if none does."""
    k, lanes = row.k, gcd(count, LANES)
    best, where = k.var(k.const("f32", LOWEST, lanes)), k.var(k.const("i32", NOWHERE, lanes))
    steps = k.lanes("i32", list(range(lanes))) if lanes > 1 else k.zeros("i32")
    for i in k.loop(0, count, lanes):
        values, places = x.load("f32", lanes, i * 4, 4), steps + i.to("i32").splat(lanes)
        after = k.either(values < value, k.both(values.compare("==", value), places > place))
        first = k.both(values.compare("==", best.now), places < where.now)
        better = k.both(after, k.either(values > best.now, first))
        best.set(k.select(better, values, best.now))
        where.set(k.select(better, places, where.now))
    highest, last = fold(best.now, maximum), k.const("i32", NOWHERE, lanes)
    equals = k.select(best.now.compare("==", highest.splat(lanes)), where.now, last)
    found = fold(equals, minimum)
    return highest, k.select(found < NOWHERE, found, k.zeros("i32"))


def pick(row: Row) -> None:
    k, count, used = row.k, row.op.inputs[0].shape[-1], row.op.out.shape[-1]
    for start in k.loop(0, row.count // used):
        x, ids, out = (
            row.input(0).at(start * (count * 4)),
            row.input(1).at(start * (used * 4)),
            row.out.at(start * (used * 4)),
        )
        for e in k.loop(0, used):
            place = ids.load("i32", 1, e * 4, 4).to("i64")
            out.store(x.load("f32", 1, place * 4, 4), e * 4, 4)


def weighted_sum(row: Row) -> None:
    """out[i] = x[0, i] * w[0] + x[1, i] * w[1] + ..., added in that order."""
    k, used = row.k, row.op.inputs[1].shape[-1]
    x, w = row.input(0), row.input(1)
    for i, n in row.vectors(row.count):
        sums = k.var(x.load("f32", n, i, 4) * w.load("f32", 1, 0, 4).splat(n))
        for e in k.loop(1, used):
            part = x.load("f32", n, i + e * (row.count * 4), 4)
            sums.set(sums.now + part * w.load("f32", 1, e * 4, 4).splat(n))
        row.out.store(sums.now, i, 4)


MIXTURE: Mapping[str, Callable[[Row], None]] = {
    "pick": pick,
    "share": share,
    "softmax": softmax,
    "top": top,
    "weighted_sum": weighted_sum,
}
