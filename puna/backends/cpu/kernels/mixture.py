"""Row operations of mixtures of experts: who is chosen, with what share, and the sum of what the chosen say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from math import gcd
from operator import add
from typing import TYPE_CHECKING

from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.backends.cpu.verbs import exp, fold, max_lanes, maximum, minimum, sum_lanes

if TYPE_CHECKING:
    from puna.backends.cpu.kernels.rows import Row

__all__ = ["MIXTURE"]

LANES = 16
LOWEST = float("-inf")
NOWHERE = 0x7FFFFFFF
LEAST_SUM = 2.0**-14


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


def sinkhorn(row: Row) -> None:
    """The result, columns as rows, is where it is worked on."""
    k, n, eps, out = row.k, row.width, row.attrs["eps"], row.out
    for i in k.loop(0, n):
        x = [row.input(0).load("f32", 1, (i * n + j) * 4, 4) for j in range(n)]
        most = reduce(maximum, x)
        x = [exp(value - most) for value in x]
        whole = reduce(add, x)
        for j, value in enumerate(x):
            out.store(value / whole + eps, (i + j * n) * 4, 4)
    divide_runs(k, out, n, n, 1, eps)
    for _ in k.loop(1, row.attrs["rounds"]):
        divide_runs(k, out, n, 1, n, eps)
        divide_runs(k, out, n, n, 1, eps)


def divide_runs(k: Kernel, at: Ptr, n: int, gap: int, step: int, eps: float) -> None:
    """Divide n runs of n values by their sums plus eps: they begin `gap` values apart and go on by `step`."""
    for i in k.loop(0, n):
        places = [(i * gap + j * step) * 4 for j in range(n)]
        values = [at.load("f32", 1, place, 4) for place in places]
        whole = reduce(add, values) + eps
        for value, place in zip(values, places, strict=True):
            at.store(value / whole, place, 4)


def summed(row: Row) -> None:
    width = row.op.inputs[0].shape[-1]
    for run in row.k.loop(0, row.count):
        found = row.k.var(row.k.zeros("f32", gcd(width, LANES)))
        for i, n in row.vectors(width):
            found.set(found.now + row.input(0).load("f32", n, i + run * (width * 4), 4))
        row.out.store(sum_lanes(found.now), run * 4, 4)


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
    least = row.k.const("f32", LEAST_SUM)
    for x, out in runs(row):
        divide(row, x, out, maximum(least, total(row, x)))  # in this order NaN comes through


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


def group_of(row: Row) -> None:
    """Row by row: ids are few, and not negative."""
    ids, out, size = row.input(0), row.out, row.attrs["size"]
    for e in row.k.loop(0, row.count * 4, 4):
        out.store(ids.load("i32", 1, e, 4) // size, e, 4)


def whole(row: Row) -> None:
    row.map(lambda x: x.to("i32"))


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


def best_groups(row: Row) -> None:
    """Each group's score, then those of the best, then from the last group to the first its values, or -inf.

    The scores lie where the first values will: a group's values come after its score, or in its place.
    """
    k, count, groups, used = row.k, row.width, row.attrs["groups"], row.attrs["used"]
    size, lowest = count // groups, k.const("f32", LOWEST, gcd(count // groups, LANES))
    for x, out in runs(row):
        for g in k.loop(0, groups):
            out.store(best_two(row, x.at(g * (size * 4)), size), g * 4, 4)
        value, place = k.var(k.const("f32", float("inf"))), k.var(k.const("i32", -1))
        for _ in k.loop(0, used):
            found = largest_after(row, out, groups, value.now, place.now)
            value.set(found[0])
            place.set(found[1])
        for i in k.loop(0, groups):
            g = k.const("i64", groups - 1) - i
            score = out.load("f32", 1, g * 4, 4)
            level = k.both(score.compare("==", value.now), g.to("i32") <= place.now)
            chosen = k.either(score > value.now, level)
            for at, n in row.vectors(size):
                here = at + g * (size * 4)
                out.store(k.select(chosen, x.load("f32", n, here, 4), lowest), here, 4)


def best_two(row: Row, x: Ptr, size: int) -> Value:
    """The sum of the two largest of `size` values; the largest where there is but one."""
    k = row.k
    first, second = (k.var(k.const("f32", LOWEST)) for _ in range(2))
    for i in k.loop(0, size * 4, 4):
        value = x.load("f32", 1, i, 4)
        second.set(maximum(second.now, minimum(value, first.now)))
        first.set(maximum(value, first.now))
    return first.now + second.now if size > 1 else first.now


def add_experts(row: Row) -> None:
    """x[e] + b[ids[e]] for x [used, n] and b [experts, n]."""
    k, width = row.k, row.width
    x, biases, ids = row.input(0), row.input(1), row.input(2)
    for e in k.loop(0, row.count // width):
        bias = biases.at(ids.load("i32", 1, e * 4, 4).to("i64") * (width * 4))
        for i, n in row.vectors(width):
            at = i + e * (width * 4)
            row.out.store(x.load("f32", n, at, 4) + bias.load("f32", n, i, 4), at, 4)


def weighted_sum(row: Row) -> None:
    """out[m, i] = x[0, i] * w[m, 0] + x[1, i] * w[m, 1] + ..., in that order; without w, x[0, i] + x[1, i] + ..."""
    k, used, width, x = row.k, row.op.inputs[0].shape[0], row.width, row.input(0)

    def term(m: Value, e: Value | int, at: Value, n: int) -> Value:
        value = x.load("f32", n, at, 4)
        if len(row.op.inputs) < 2:
            return value
        return value * row.input(1).load("f32", 1, m * (used * 4) + e * 4, 4).splat(n)

    for m in k.loop(0, row.count // width):
        for i, n in row.vectors(width):
            sums = k.var(term(m, 0, i, n))
            for e in k.loop(1, used):
                sums.set(sums.now + term(m, e, i + e * (width * 4), n))
            row.out.store(sums.now, m * (width * 4) + i, 4)


MIXTURE: Mapping[str, Callable[[Row], None]] = {
    "add_experts": add_experts,
    "best_groups": best_groups,
    "group_of": group_of,
    "pick": pick,
    "share": share,
    "sinkhorn": sinkhorn,
    "softmax": softmax,
    "sum": summed,
    "top": top,
    "weighted_sum": weighted_sum,
    "whole": whole,
}
