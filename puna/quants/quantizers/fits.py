"""Whole blocks fitted by search: scales as they are stored, and the codes that go with them.

Values and weights are float32 [n, block]; w None stands for weights that nobody knows.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from puna.errors import RequestError
from puna.quants.quantizers.search import Affine, Bytes, Floats, Groups, Scaled, inverse, search

__all__ = [
    "Tile",
    "affine_block",
    "affine_groups",
    "half",
    "refuse",
    "scaled_block",
    "scaled_groups",
    "sizes",
]

# Blocks are filled up to a multiple of this: NumPy would sum in another order where there is only one.
WIDTH = 16
# No type with half-float scales holds larger values, and up to here no sum of squares overflows.
LARGEST = np.float32(2**30)
LEAST = np.float32(2**-24)  # half float above 0


class Tile:
    """Blocks with their axes reversed, so that operations run over blocks that lie side by side.

    groups: values and weights [group, groups of a block * padded n], the block running fastest.
    Raises RequestError for values that are too large, infinite or NaN.
    """

    def __init__(self, x: Floats, w: Floats | None, group: int) -> None:
        if not (np.abs(x) <= LARGEST).all():
            refuse()
        self.count = len(x)
        self.shape = group, x.shape[1] // group, -(-self.count // WIDTH) * WIDTH
        self.groups = Groups(self.turned(x, 0), None if w is None else self.turned(w, 1))

    def turned(self, blocks: Floats, padding: int) -> Floats:
        group, per_block, padded = self.shape
        result = np.empty(self.shape, np.float32)
        result[..., : self.count] = blocks.reshape(self.count, per_block, group).T
        result[..., self.count :] = padding
        return result.reshape(group, per_block * padded)

    def by_block(self, groups: NDArray[Any]) -> NDArray[Any]:
        """An array [..., groups] as [..., groups of a block, padded n]."""
        return groups.reshape(*groups.shape[:-1], *self.shape[1:])

    def back(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array [..., padded n] with its axes reversed again and without the padding: [n, ...]."""
        return np.ascontiguousarray(array[..., : self.count].T)


def scaled_block(x: Floats, w: Floats | None, model: Scaled) -> tuple[Bytes, Bytes]:
    """Scales uint8 [n, 2] and places [n, block] of blocks that are a group."""
    tile = Tile(x, sizes(x) if w is None else w, x.shape[1])
    scale, _zero, _sums = search(tile.groups, model)
    model.encode(tile.groups, rounded(scale))
    scale, _zero, _gain = model.solve(tile.groups, tile.groups.sums())
    return half(tile.back(scale)), tile.back(model.levels.places(tile.groups.codes))


def affine_block(x: Floats, w: Floats | None, model: Affine) -> tuple[Bytes, Bytes, Bytes]:
    """Scales and offsets uint8 [n, 2], and codes [n, block], of blocks that are a group."""
    tile = Tile(x, w, x.shape[1])
    scale, offset, _sums = search(tile.groups, model)
    model.encode(tile.groups, rounded(scale), rounded(offset))
    return half(tile.back(scale)), half(tile.back(offset)), tile.back(tile.groups.codes.astype(np.uint8))


def scaled_groups(
    x: Floats, w: Floats | None, group: int, model: Scaled, steps: Scaled
) -> tuple[Bytes, Bytes, Bytes]:
    """Units uint8 [n, 2], places of steps [n, groups] and of levels [n, groups, group]."""
    tile = Tile(x, sizes(x) if w is None else w, group)
    scale, _zero, sums = search(tile.groups, model)
    unit, step = stepped(tile.by_block(scale), tile.by_block(sums[1]), steps)
    model.encode(tile.groups, (unit * step).reshape(-1))
    _l, ll, lx = tile.by_block(tile.groups.sums())
    # The best one for codes and steps as they are now.
    unit = np.add.reduce(step * lx) * inverse(np.add.reduce(step * step * ll))
    places = tile.by_block(model.levels.places(tile.groups.codes))
    return half(tile.back(unit)), tile.back(steps.levels.places(step)), tile.back(places)


def affine_groups(
    x: Floats, w: Floats | None, group: int, model: Affine, steps: Scaled
) -> tuple[Bytes, Bytes, Bytes, Bytes, Bytes]:
    """Units and low units uint8 [n, 2], steps and low steps [n, groups], and codes [n, groups, group].

    A value is unit * step * code - low unit * low step.
    """
    tile = Tile(x, w, group)
    groups, total, sum_x = tile.groups, tile.by_block(tile.groups.total), tile.by_block(tile.groups.sum_x)
    scale, offset, sums = search(groups, model)
    unit, step = stepped(tile.by_block(scale), tile.by_block(sums[1]), steps)
    scale = unit * step
    model.encode(groups, scale.reshape(-1), offset)
    l, _ll, _lx = tile.by_block(groups.sums())
    low, low_step = stepped(np.maximum(scale * l - sum_x, 0) / total, total, steps)
    model.encode(groups, scale.reshape(-1), -(low * low_step).reshape(-1))
    unit, low = best_units(step, low_step, tile.by_block(groups.sums()), total, sum_x)
    steps_stored, low_steps_stored, codes = (
        tile.back(a.astype(np.uint8)) for a in (step, low_step, tile.by_block(groups.codes))
    )
    return half(tile.back(unit)), half(tile.back(low)), steps_stored, low_steps_stored, codes


def best_units(
    step: Floats, low_step: Floats, sums: Floats, total: Floats, sum_x: Floats
) -> tuple[Floats, Floats]:
    """The units [n] of least error for codes and steps as they are: two linear equations."""
    l, ll, lx = sums
    aa, bb = np.add.reduce(step * step * ll), np.add.reduce(low_step * low_step * total)
    ab = np.add.reduce(step * low_step * l)
    ax, bx = np.add.reduce(step * lx), np.add.reduce(low_step * sum_x)
    determinant = aa * bb - ab * ab
    unit = np.where(determinant > 0, (ax * bb - ab * bx) / determinant, ax * inverse(aa))
    return unit, (rounded(unit) * ab - bx) * inverse(bb)


def stepped(scale: Floats, curvature: Floats, steps: Scaled) -> tuple[Floats, Floats]:
    """Units [n], rounded as they are stored, and steps [groups, n] for scales [groups, n].

    curvature: by how much a scale's squared error is multiplied in the error of its group.
    Units are small, and half floats near zero far apart: so guesses are judged as they are when rounded.
    """
    groups = Groups(scale, curvature)
    guesses = np.stack([unit for unit, _zero in steps.guesses(groups)])
    units = np.where(np.abs(guesses) < LEAST, np.copysign(LEAST, guesses), rounded(guesses))
    gains = np.empty_like(units)
    for unit, gain in zip(units, gains, strict=True):
        steps.encode(groups, unit)
        _l, ll, lx = groups.sums()
        gain[:] = unit * (2 * lx - unit * ll)  # by what the error is less than without steps
    best = np.take_along_axis(units, gains.argmax(axis=0)[None], axis=0)[0]
    steps.encode(groups, best)
    return best, groups.codes


def sizes(x: Floats) -> Floats:
    """Weights in place of unknown ones, where there are no offsets.

    With the plain squared error the search clips large values too readily: on Gemma 3 270M and SmolLM2 135M the
    outputs diverge less with these. Types with offsets do better with the plain error.
    """
    return np.abs(x)


def rounded(d: Floats) -> Floats:
    """Scales as they come back from a half float. Raises RequestError as `half` does."""
    return half(d).view("<f2").astype(np.float32).reshape(d.shape)


def half(d: Floats) -> Bytes:
    """Scales [...] as stored [..., 2]. Raises RequestError where one is not finite as a half float."""
    halves = d.astype("<f2")
    if not np.isfinite(halves).all():
        refuse()
    return halves[..., None].view(np.uint8)


def refuse() -> NoReturn:
    raise RequestError(
        "a value is infinite, NaN or too large for a block's scale", fix="keep this tensor in F32"
    )
