"""Blocks of positions pooled into one row each: a unit is a sequence with some channels of what comes out."""

from __future__ import annotations

from math import gcd
from typing import cast

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.walks import Work, carry, operands, sizes, units
from puna.backends.cpu.lang import Kernel
from puna.backends.cpu.verbs import exp, fma, maximum
from puna.graph import Node

__all__ = ["pool", "pool_work"]

LANES = 16


def pool(k: Kernel, *, channels: int, every: int, overlap: bool) -> None:
    """The state is a ring of positions, of each its x and its scores, f32 [channels]."""
    size, kept = (channels // 2, 2 * every) if overlap else (channels, every)
    lanes, ring = gcd(size, LANES), 2 * channels * 4
    out, x, scores, offsets, positions = operands(k, 4)
    halves = range(0, channels * 4, size * 4)
    for part, found in units(k, size // lanes, kept * 2 * channels):
        at = part * (lanes * 4)
        for rows in found:
            state = rows.target.at(at)
            for half in halves:
                carry(k, rows, at + half, kept * 2, channels * 4, (lanes, 1))
            for row in k.loop(rows.first, rows.first + rows.count):
                position = positions.load("i32", 1, row * 4, 4).to("i64")
                place, offset = (
                    state.at(position % kept * ring),
                    offsets.at(position % every * (channels * 4) + at),
                )
                for half in halves:
                    column = row * (channels * 4) + at + half
                    place.store(x.load("f32", lanes, column, 4), half, 4)
                    score = scores.load("f32", lanes, column, 4) + offset.load("f32", lanes, half, 4)
                    place.store(score, half + channels * 4, 4)
                target = out.at(row * (size * 4) + at)
                target.store(k.zeros("f32", lanes), 0, 4)
                with k.when(((position + 1) % every).compare("==", 0)):
                    first = k.select(position < every, k.const("i64", kept - every), k.zeros("i64"))
                    most, total, mixed = (k.var(k.const("f32", n, lanes)) for n in (-1e30, 0.0, 0.0))
                    for j in k.loop(first, kept):
                        known = state.at((position + 1 + j) % kept * ring + j // every * (size * 4))
                        most.set(maximum(most.now, known.load("f32", lanes, channels * 4, 4)))
                    for j in k.loop(first, kept):
                        known = state.at((position + 1 + j) % kept * ring + j // every * (size * 4))
                        weight = exp(known.load("f32", lanes, channels * 4, 4) - most.now)
                        total.set(total.now + weight)
                        mixed.set(fma(known.load("f32", lanes, 0, 4), weight, mixed.now))
                    target.store(mixed.now / total.now, 0, 4)


def pool_work(node: Node) -> Work:
    (channels,), overlap = sizes(node.inputs[0]), bool(node.attrs["overlap"])
    how = {"channels": channels, "every": cast(int, node.attrs["every"]), "overlap": overlap}
    (size,) = sizes(node)
    return Work(Spec.of(pool, **how), size // gcd(size, LANES))
