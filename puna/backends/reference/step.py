"""What the kernels of one step share: its batch, the cache, scratch memory, and the angles of its positions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.graph import Rope
from puna.plan import Batch, KVLayout

__all__ = ["Step"]


class Step:
    """One run of a plan.

    cache: uint8 [positions, row bytes] of each layer's keys and values.  scratch: float32, flat.
    states: float32 [slots, ...] of each state.
    """

    def __init__(
        self,
        batch: Batch,
        layout: KVLayout,
        cache: dict[int, tuple[NDArray[np.uint8], NDArray[np.uint8]]],
        scratch: NDArray[np.float32],
        states: Mapping[str, NDArray[np.float32]] = MappingProxyType({}),
    ) -> None:
        self.batch, self.layout, self.cache, self.scratch, self.states = batch, layout, cache, scratch, states
        self._angles: dict[tuple[Rope, int], tuple[NDArray[Any], NDArray[Any]]] = {}

    def angles(
        self, rope: Rope, factors: NDArray[np.float32] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """cos and sin of each token's angles, times the magnitude: float32 [T, 1, dims / 2] each."""
        key = rope, id(factors)
        if key not in self._angles:
            theta = (self.batch.positions[:, None] + rope.shift) * rope.frequencies(factors)
            pair = (np.cos(theta) * rope.magnitude, np.sin(theta) * rope.magnitude)
            self._angles[key] = tuple(part.astype(np.float32)[:, None, :] for part in pair)  # type: ignore[assignment]
        return self._angles[key]
