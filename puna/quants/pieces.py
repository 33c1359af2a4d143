"""Arrays of rows seen as arrays of blocks, and cut into pieces that fit the processor's caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.errors import FormatError, RequestError
from puna.quants.base import QuantType

__all__ = ["as_blocks", "pieces", "split"]

# Values worked on at once: 1 MiB of float32. Larger pieces fall out of L2, smaller ones pay for Python.
PIECE = 1 << 18


def as_blocks(quant: QuantType, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A view [..., blocks, bytes] of raw [..., row bytes]; FormatError or RequestError for anything else."""
    raw = np.asarray(raw)
    if raw.dtype != np.uint8 or raw.ndim == 0:
        raise RequestError(f"{quant.name} blocks are read from uint8 rows, not {raw.dtype} {list(raw.shape)}")
    if raw.shape[-1] % quant.bytes:
        raise FormatError(
            f"a row of {raw.shape[-1]} bytes does not divide into {quant.name} blocks of {quant.bytes}"
        )
    return split(raw, quant.bytes)


def split(array: NDArray[Any], size: int) -> NDArray[Any]:
    """A view [..., n, size] of an array [..., n * size]: parting an axis never copies, at any strides."""
    return array.reshape(*array.shape[:-1], array.shape[-1] // size, size)


def pieces(quant: QuantType, shape: tuple[int, ...]) -> Iterator[tuple[int | slice, ...]]:
    """Indices that cut an array of blocks of this shape, in order, into pieces of at most PIECE values."""
    limit = PIECE // quant.block
    axis, inner = len(shape) - 1, 1
    while axis > 0 and inner * shape[axis] <= limit:
        inner *= shape[axis]
        axis -= 1
    step = max(1, limit // max(1, inner))
    for lead in np.ndindex(shape[:axis]):
        for start in range(0, shape[axis], step):
            yield (*lead, slice(start, start + step))
