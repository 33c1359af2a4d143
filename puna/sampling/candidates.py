"""The tokens that may come next: two arrays that shrink as they pass along the chain."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from puna.scans import Scans

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
    "weights",
]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Doubles = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]

SORT_ALL = 2048  # below this many logits one sort is quicker than looking for a threshold first
RUNS = 512  # fewest runs of a whole vocabulary whose maxima are looked at
NUMPY = Scans()


class Candidates(NamedTuple):
    """Tokens and their logits.

    logits: float32 [n]; -inf is a token that is ruled out.
    ids: int32 [n], or None where the position is the id, as for a whole vocabulary.
    ordered: the logits descend.
    scans: what passes over many of them.
    """

    logits: Floats
    ids: Ints | None = None
    ordered: bool = False
    scans: Scans = NUMPY

    def keep(self, positions: Positions, *, ordered: bool = False) -> Candidates:
        """The candidates at these positions, in this order."""
        ids = positions.astype(np.int32) if self.ids is None else self.ids[positions]
        return Candidates(self.logits[positions], ids, ordered, self.scans)

    def first(self, count: int) -> Candidates:
        """The first `count` of ordered candidates."""
        assert self.ids is not None
        return self._replace(logits=self.logits[:count], ids=self.ids[:count])

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


def highest(candidates: Candidates) -> float:
    """The highest logit; NaN where one is."""
    logits = candidates.logits
    if candidates.ordered:
        return float(logits[0])
    if len(logits) < SORT_ALL:
        return float(np.max(logits))
    rest = logits[len(logits) // RUNS * RUNS :]
    return float(np.max(np.append(candidates.scans.maxima(logits, RUNS), rest)))


def weights(candidates: Candidates) -> Doubles:
    """Softmax before the division by the sum, float64 [n]. At least one logit must be finite."""
    found: Doubles = candidates.scans.weights(candidates.logits, highest(candidates)).astype(np.float64)
    return found


def probabilities(candidates: Candidates) -> Doubles:
    """Softmax, float64 [n]. At least one logit must be finite."""
    found = weights(candidates)
    chances: Doubles = found / found.sum()
    return chances


def top(candidates: Candidates, count: int) -> Candidates:
    """The `count` candidates of highest logit in descending order, leaving out those that are ruled out."""
    if candidates.ordered:
        return candidates.first(count)
    return candidates.keep(strongest(candidates, count), ordered=True)


def strongest(candidates: Candidates, count: int) -> Positions:
    """Positions of the `count` highest logits above -inf, in descending order; ties in order of position.

    The maxima of many runs of the array bound the count-th highest logit from below. Only the runs that reach the
    bound are looked into, and only a few survivors are sorted.
    """
    logits, runs = candidates.logits, max(RUNS, 4 * count)
    size = len(logits) // runs
    if size < 2 or len(logits) < SORT_ALL:
        survivors = np.flatnonzero(logits > -np.inf)
    else:
        maxima = candidates.scans.maxima(logits, runs)  # [runs]
        bound = np.partition(maxima, runs - count)[runs - count]
        bound = max(
            bound, np.nextafter(np.float32(-np.inf), np.float32(0))
        )  # the least that is not ruled out
        hit = np.flatnonzero(maxima >= bound)
        run, place = np.nonzero(logits[: runs * size].reshape(runs, size)[hit] >= bound)
        rest = np.flatnonzero(logits[runs * size :] >= bound) + runs * size
        survivors = np.concatenate([hit[run] * size + place, rest])
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
