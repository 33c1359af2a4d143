"""How much the squared errors of columns count."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.errors import RequestError

__all__ = ["column_weights"]

# Share of its block's mean that a weight is at least: with less, float32 sums would not see the value at all.
LEAST = 1e-4


def column_weights(weights: NDArray[Any], k: int, block: int) -> NDArray[np.float32]:
    """Weights of columns [k] as those of blocks [k / block, block], of mean 1 or a little above in each block.

    A block whose columns weigh nothing is as one whose columns weigh the same.
    Raises RequestError for weights of another shape or type, negative ones, infinities and NaN.
    """
    weights = np.asarray(weights)
    if weights.shape != (k,) or not np.can_cast(weights.dtype, np.float32, "safe"):
        raise RequestError(f"weights must be float32 [{k}], not {weights.dtype} {list(weights.shape)}")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise RequestError("a weight is negative, infinite or NaN", fix="make the importance matrix anew")
    blocks = weights.reshape(-1, block).astype(np.float64)
    means = blocks.mean(axis=1, keepdims=True)
    shares = np.divide(blocks, means, out=np.ones_like(blocks), where=means > 0)
    result: NDArray[np.float32] = np.maximum(shares, LEAST).astype(np.float32)
    return result
