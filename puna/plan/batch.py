"""What one step computes: its tokens, whose they are, and which logits are wanted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Batch", "Segment", "Span"]


@dataclass(frozen=True)
class Segment:
    """Rows of a span between two states that are kept: `count` from row `start` of the batch on.

    source, target: slots of the state before the first of them, and of that after the last; slot 0 is all zeros.
    """

    start: int
    count: int
    source: int
    target: int


@dataclass(frozen=True)
class Span:
    """The rows of one sequence in a step.

    start, count: its rows in the batch.  past: positions it held before this step.
    pages: for each group of layers int32, the page of the cache that holds each run of `page` positions, this step's
    included; -1 where it is not held any more.
    segments: all its rows, in order, for operations with a state; each goes on from where the one before ended.
    border: the first position of what is decoded, where those before it were, or are being, encoded.
    """

    start: int
    count: int
    past: int
    pages: tuple[NDArray[np.int32], ...]
    segments: tuple[Segment, ...] = ()
    border: int = 0

    @property
    def length(self) -> int:
        """Positions held after this step."""
        return self.past + self.count


@dataclass(frozen=True)
class Batch:
    """One step. Rows of all sequences stand together, prefill and decode mixed.

    tokens, positions: int32 [T].  spans: the sequences, in row order.  outputs: int32 [R], rows wanting logits.
    copies: pages to copy before the step, (group, from, to).
    encodes: these are whole texts for an encoder, and nothing is decoded.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    spans: tuple[Span, ...]
    outputs: NDArray[np.int32]
    copies: tuple[tuple[int, int, int], ...] = ()
    encodes: bool = False
