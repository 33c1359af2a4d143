"""Passes over the logits of a whole vocabulary: in NumPy here; a backend may have kernels for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scans"]

Floats = NDArray[np.float32]


class Scans:
    """What samplers ask of arrays too long to sort."""

    def maxima(self, logits: Floats, segments: int) -> Floats:
        """The highest logit of each of `segments` equal runs, float32 [segments]; NaN where one is.

        logits: float32 [n], contiguous; the n % segments at its end are in no run.
        """
        runs = logits[: len(logits) // segments * segments].reshape(segments, -1)
        most: Floats = runs.max(axis=1)
        return most

    def weights(self, logits: Floats, most: float) -> Floats:
        """exp(logits - most), float32 [n]: softmax before it is divided by the sum."""
        found: Floats = np.exp(logits - np.float32(most))
        return found
