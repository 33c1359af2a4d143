"""The fast Walsh-Hadamard transform of runs of a row, in registers: half of its butterflies are shuffles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from puna.backends.cpu.lang import Value
from puna.graph import hadamard_size

if TYPE_CHECKING:
    from puna.backends.cpu.kernels.rows import Row

__all__ = ["hadamard"]

LANES = 16


def hadamard(row: Row) -> None:
    """Each run of `hadamard_size` values of the last dimension."""
    size = hadamard_size(row.width)
    lanes = min(size, LANES)
    for start in row.k.loop(0, row.count * 4, size * 4):
        x, out = row.input(0).at(start), row.out.at(start)
        parts = [x.load("f32", lanes, i * lanes * 4, 4) for i in range(size // lanes)]
        half = 1
        while half < lanes:
            parts = [within(part, half) for part in parts]
            half *= 2
        apart = 1
        while apart < len(parts):
            parts = across(parts, apart)
            apart *= 2
        for i, part in enumerate(parts):
            out.store(part * size**-0.5, i * lanes * 4, 4)


def within(x: Value, half: int) -> Value:
    """Butterflies of lanes `half` apart: a + b in the place of a, a - b in that of b."""
    other = x.shuffle([lane ^ half for lane in range(x.lanes)])
    signs = x.k.lanes("f32", [-1.0 if lane & half else 1.0 for lane in range(x.lanes)])
    return other + x * signs


def across(parts: list[Value], apart: int) -> list[Value]:
    """Butterflies of vectors `apart` apart."""
    found = list(parts)
    for i, part in enumerate(parts):
        if not i & apart:
            found[i], found[i | apart] = part + parts[i | apart], part - parts[i | apart]
    return found
