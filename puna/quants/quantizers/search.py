"""Scales and offsets of least squared error, for many groups at once.

Values are held [values of a group, groups], so that every operation runs over groups that lie side by side. A value x
of weight w adds w * (x - scale * code - offset) ** 2 to the error. For given codes the best scale and offset follow
from sums over the group. So a search makes several guesses, takes the codes nearest to each, keeps the guess whose
codes allow the least error, and lets codes and scale follow each other a few times.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Affine", "Groups", "Levels", "Scaled", "Table", "inverse", "search"]

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
ROUNDS = 2  # in which codes and scale follow each other
SINGULAR = np.float32(1e-6)  # a determinant below this share of its terms is what rounding left of 0


class Groups:
    """Values x and weights w of groups, float32 [values, groups]; None stands for weights of 1.

    wx: their product.  total, sum_x: sums of w and of wx.  codes: those that were tried last, as floats.
    """

    def __init__(self, x: Floats, w: Floats | None) -> None:
        self.x, self.w = x, w
        self.wx = x if w is None else w * x
        self.total = np.full(x.shape[1], len(x), np.float32) if w is None else np.add.reduce(w)
        self.sum_x: Floats = np.add.reduce(self.wx)
        self.codes = np.empty_like(x)
        self.weighted = self.codes if w is None else np.empty_like(x)

    def sums(self, out: Floats | None = None) -> Floats:
        """Sums over each group of w l, w l l and w l x, for codes l: float32 [3, groups]."""
        if out is None:
            out = np.empty((3, self.x.shape[1]), np.float32)
        if self.w is not None:
            np.multiply(self.w, self.codes, out=self.weighted)
        np.add.reduce(self.weighted, out=out[0])
        np.einsum("ij,ij->j", self.weighted, self.codes, out=out[1])
        np.einsum("ij,ij->j", self.codes, self.wx, out=out[2])
        return out


class Levels:
    """The whole numbers from low to high: what a scale is multiplied by."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = np.float32(low), np.float32(high)

    def nearest(self, t: Floats) -> None:
        """Turn each t into the level nearest to it."""
        np.clip(np.rint(t, out=t), self.low, self.high, out=t)

    def places(self, levels: Floats) -> Bytes:
        """What is stored for each level: its distance from the lowest."""
        places: Bytes = (levels - self.low).astype(np.uint8)
        return places


class Table(Levels):
    """The entries of a type's table, less its zero. What is stored is a place in the table."""

    def __init__(self, table: Sequence[int], zero: int) -> None:
        entries = np.array(table, np.float32) - np.float32(zero)
        order = np.argsort(entries, kind="stable")
        ordered = entries[order]
        super().__init__(int(ordered[0]), int(ordered[-1]))
        # Entries are whole numbers, so where the nearest one changes is at a half.
        halves = np.arange(2 * self.low, 2 * self.high + 1) / 2
        rank = np.searchsorted((ordered[1:] + ordered[:-1]) / 2, halves, side="right")
        self.levels, self.stored = ordered[rank], order[rank].astype(np.uint8)

    def halves(self, t: Floats) -> NDArray[np.intp]:
        """How many halves each t is above the lowest level. Changes t."""
        np.clip(t, self.low, self.high, out=t)
        t -= self.low
        t *= 2
        return t.astype(np.intp)

    def nearest(self, t: Floats) -> None:
        np.take(self.levels, self.halves(t), out=t, mode="clip")  # by far faster than "raise"

    def places(self, levels: Floats) -> Bytes:
        return self.stored.take(self.halves(levels.copy()))


class Model(Protocol):
    """How codes stand for values."""

    def guesses(self, groups: Groups) -> list[tuple[Floats, Floats]]:
        """Scales and offsets [groups] to start from."""

    def encode(self, groups: Groups, scale: Floats, offset: Floats) -> None:
        """Set the codes to the nearest ones."""

    def solve(self, groups: Groups, sums: Floats) -> tuple[Floats, Floats, Floats]:
        """The best scale and offset for codes with these sums [3, ..., groups], and by what they lower the error."""


class Scaled:
    """scale * level. `ends` are the levels that the value of largest magnitude is put on for a guess."""

    def __init__(self, levels: Levels, ends: Sequence[float]) -> None:
        self.levels, self.ends = levels, np.array(ends, np.float32)

    def guesses(self, groups: Groups) -> list[tuple[Floats, Floats]]:
        high, low = np.maximum.reduce(groups.x), np.minimum.reduce(groups.x)
        peak = np.where(high + low < 0, low, high)
        return [(peak / end, np.zeros_like(peak)) for end in self.ends]

    def encode(self, groups: Groups, scale: Floats, offset: Floats | None = None) -> None:
        self.levels.nearest(np.multiply(groups.x, inverse(scale), out=groups.codes))

    def solve(self, groups: Groups, sums: Floats) -> tuple[Floats, Floats, Floats]:
        scale = sums[2] * inverse(sums[1])
        return scale, np.zeros_like(scale), scale * sums[2]


class Affine:
    """scale * code + offset, codes from 0 to top.

    signed: whether an offset may be above 0.
    """

    # Steps that a group's range is wider by than the codes', below and above: each with each for a guess.
    MARGINS = -0.7, -0.3, 0.1, 0.5

    def __init__(self, top: int, signed: bool) -> None:
        self.top, self.signed = np.float32(top), signed

    def guesses(self, groups: Groups) -> list[tuple[Floats, Floats]]:
        high, low = np.maximum.reduce(groups.x), np.minimum.reduce(groups.x)
        if not self.signed:
            low = np.minimum(low, np.float32(0))
        margins = product(np.array(self.MARGINS, np.float32), repeat=2)
        scales = [((high - low) / (self.top + a + b), a) for a, b in margins]
        return [(scale, low + a * scale) for scale, a in scales]

    def encode(self, groups: Groups, scale: Floats, offset: Floats) -> None:
        per_step, codes = inverse(scale), groups.codes
        np.multiply(groups.x, per_step, out=codes)
        codes -= offset * per_step
        np.clip(np.rint(codes, out=codes), np.float32(0), self.top, out=codes)

    def solve(self, groups: Groups, sums: Floats) -> tuple[Floats, Floats, Floats]:
        (l, ll, lx), w, x = sums, groups.total, groups.sum_x
        determinant = w * ll - l * l
        regular = determinant > SINGULAR * w * ll
        per = np.where(regular, 1 / determinant, np.float32(0))
        scale = (w * lx - l * x) * per
        offset = np.where(regular, (ll * x - l * lx) * per, x / w)  # the mean, where all codes are the same
        if not self.signed:
            above = offset > 0
            scale = np.where(above, lx * inverse(ll), scale)
            offset = np.where(above, np.float32(0), offset)
        return scale, offset, scale * lx + offset * x


def search(groups: Groups, model: Model) -> tuple[Floats, Floats, Floats]:
    """The best scales and offsets [groups] that were found, and the sums of the codes that they belong to."""
    guesses = model.guesses(groups)
    sums = np.empty((3, len(guesses), groups.x.shape[1]), np.float32)
    for i, (scale, offset) in enumerate(guesses):
        model.encode(groups, scale, offset)
        groups.sums(sums[:, i])
    scale, offset, gain = model.solve(groups, sums)
    best = gain.argmax(axis=0)[None]
    scale, offset = (np.take_along_axis(a, best, axis=0)[0] for a in (scale, offset))
    for _ in range(ROUNDS):
        model.encode(groups, scale, offset)
        last = groups.sums(sums[:, 0])
        scale, offset, _gain = model.solve(groups, last)
    return scale, offset, last


def inverse(d: Floats) -> Floats:
    """1 / d, and 0 where that is infinite: such a scale is stored as 0, so the codes do not matter."""
    result = np.reciprocal(d)
    return np.where(np.isinf(result), np.float32(0), result)
