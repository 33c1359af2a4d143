"""Passes over the logits of a whole vocabulary, for samplers: maxima of runs, and softmax's exponentials."""

from __future__ import annotations

from collections.abc import Callable

from puna.backends.cpu.lang import Kernel, Value
from puna.backends.cpu.verbs import exp, fold, maximum

__all__ = ["exponentials", "maxima"]

LANES = 16
NAN = 0x7F800000  # the bits of a NaN without its sign are above this


def in_vectors(k: Kernel, count: Value, step: Callable[[Value, int], None]) -> None:
    """Call `step(byte offset, lanes)` for all of `count` floats: whole vectors, then one by one."""
    whole = count // LANES * LANES
    for i in k.loop(0, whole, LANES):
        step(i * 4, LANES)
    for i in k.loop(whole, count):
        step(i * 4, 1)


def maxima(k: Kernel) -> None:
    """Runs begin to end - 1. args: 0 logits, 8 result f32 [runs], 16 logits a run."""
    args, begin, end, _ = k.args
    logits, result, size = args.ptr(0), args.ptr(8), args.load("i64", offset=16, align=8)
    for run in k.loop(begin, end):
        at = logits.at(run * size * 4)
        most = {n: k.var(k.const("f32", float("-inf"), n)) for n in (LANES, 1)}
        bits = {n: k.var(k.zeros("u32", n)) for n in (LANES, 1)}  # a comparison would lose a NaN

        def step(offset: Value, n: int) -> None:
            x = at.load("f32", n, offset, 4)  # noqa: B023 - called in this turn
            most[n].set(maximum(x, most[n].now))  # noqa: B023
            bits[n].set(maximum(x.as_("u32") & 0x7FFFFFFF, bits[n].now))  # noqa: B023

        in_vectors(k, size, step)
        highest, largest = (maximum(fold(each[LANES].now, maximum), each[1].now) for each in (most, bits))
        result.at(run * 4).store(k.select(largest > NAN, k.const("f32", float("nan")), highest), 0, 4)


def exponentials(k: Kernel) -> None:
    """Logits begin to end - 1. args: 0 logits, 8 result f32, 16 the f32 that is taken away from each."""
    args, begin, end, _ = k.args
    logits, result, most = args.ptr(0), args.ptr(8), args.load("f32", offset=16, align=4)

    def step(offset: Value, n: int) -> None:
        place = offset + begin * 4
        result.store(exp(logits.load("f32", n, place, 4) - most), place, 4)

    in_vectors(k, end - begin, step)
