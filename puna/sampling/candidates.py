"""The tokens that may come next: two arrays that shrink as they pass along the chain."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "Candidates",
    "Doubles",
    "Floats",
    "Ints",
    "Positions",
    "highest",
    "probabilities",
    "strongest",
    "top",
]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Doubles = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]

SORT_ALL = 2048  # below this many logits one sort is quicker than looking for a threshold first


class Candidates(NamedTuple):
    """Tokens and their logits.

    logits: float32 [n]; -inf is a token that is ruled out.
    ids: int32 [n], or None where the position is the id, as for a whole vocabulary.
    ordered: the logits descend.
    """

    logits: Floats
    ids: Ints | None = None
    ordered: bool = False

    def keep(self, positions: Positions, *, ordered: bool = False) -> Candidates:
        """The candidates at these positions, in this order."""
        ids = positions.astype(np.int32) if self.ids is None else self.ids[positions]
        return Candidates(self.logits[positions], ids, ordered)

    def first(self, count: int) -> Candidates:
        """The first `count` of ordered candidates."""
        assert self.ids is not None
        return Candidates(self.logits[:count], self.ids[:count], self.ordered)

    def find(self, tokens: Ints) -> tuple[Positions, Positions]:
        """Where `tokens` are among the candidates: (indices into `tokens`, positions), for those that are."""
        if self.ids is None:
            return np.arange(len(tokens)), tokens.astype(np.intp)
        by_id = np.argsort(self.ids)
        places = np.searchsorted(self.ids, tokens, sorter=by_id).clip(max=len(by_id) - 1)
        positions = by_id[places]
        found = np.flatnonzero(self.ids[positions] == tokens)
        return found, positions[found]

    def token(self, position: int) -> int:
        return position if self.ids is None else int(self.ids[position])


def highest(logits: Floats) -> np.float32:
    """The highest logit."""
    most: np.float32 = np.max(logits)
    return most


def probabilities(candidates: Candidates) -> Doubles:
    """Softmax, float64 [n]. At least one logit must be finite."""
    logits = candidates.logits
    weights = np.exp(logits - highest(logits)).astype(np.float64)
    chances: Doubles = weights / weights.sum()
    return chances


def top(candidates: Candidates, count: int) -> Candidates:
    """The `count` candidates of highest logit in descending order, leaving out those that are ruled out."""
    if candidates.ordered:
        return candidates.first(count)
    return candidates.keep(strongest(candidates.logits, count), ordered=True)


def strongest(logits: Floats, count: int) -> Positions:
    """Positions of the `count` highest logits above -inf, in descending order; ties in order of position.

    A maximum over each of many stripes of the array bounds the count-th highest logit from below, so that
    a whole vocabulary is compared with one number and only a few survivors are sorted.
    """
    stripes = max(512, 4 * count)
    if stripes * 2 > len(logits) or len(logits) < SORT_ALL:
        survivors = np.flatnonzero(logits > -np.inf)
    else:
        rows = len(logits) // stripes
        maxima = logits[: rows * stripes].reshape(rows, stripes).max(axis=0)  # [stripes]
        bound = np.partition(maxima, stripes - count)[stripes - count]
        survivors = np.flatnonzero(logits >= bound if bound > -np.inf else logits > bound)
    return survivors[_descending(logits[survivors])[:count]]


def _descending(logits: Floats) -> Positions:
    """Positions in descending order of logit; ties in order of position.

    Sorts integers that hold the bits of a logit above its position: several times quicker than a stable
    argsort. The bits of floats sort like integers once those of negative numbers are turned around.
    """
    bits = (logits + np.float32(0)).view(np.int32)  # adding 0 makes a negative zero equal to zero
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    packed = (~rising).astype(np.int64) << 32 | np.arange(len(logits))
    packed.sort()
    positions: Positions = packed & 0xFFFFFFFF
    return positions
