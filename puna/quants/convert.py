"""Whole arrays: blocks to float32 and back, in bounded memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.errors import RequestError
from puna.quants.base import QuantType
from puna.quants.lanes import NumpyBlock, as_array
from puna.quants.pieces import as_blocks, pieces, split
from puna.quants.plain import F32
from puna.quants.quantizers import QUANTIZERS
from puna.quants.quantizers.weights import column_weights

__all__ = ["dequantize", "quantize"]


def dequantize(
    quant: QuantType, raw: NDArray[np.uint8], out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Values of rows of blocks, bit for bit GGML's.

    raw: uint8 [..., row bytes], little-endian; may be read-only and memory-mapped, and is read in place.
    out: float32 [..., k] to write into. Without it the result is a new array, or for F32 a view of raw where
    raw's memory allows (read-only if raw is).
    Infinite and NaN scales give what arithmetic makes of them, without a warning.
    Raises FormatError where a row is not whole blocks, RequestError where raw or out has the wrong form.
    """
    blocks = as_blocks(quant, raw)  # [..., blocks, bytes]
    shape = (*blocks.shape[:-2], blocks.shape[-2] * quant.block)
    if out is None:
        if isinstance(quant, F32) and blocks.strides[-1] == 1:
            return np.require(blocks.view("<f4")[..., 0], np.float32, "A")
        out = np.empty(shape, np.float32)
    if out.dtype != np.float32 or out.shape != shape:
        raise RequestError(f"out must be float32 {list(shape)}, not {out.dtype} {list(out.shape)}")
    values = split(out, quant.block)  # [..., blocks, block]
    with np.errstate(over="ignore", invalid="ignore"):
        for piece in pieces(quant, blocks.shape[:-1]):
            block, target = NumpyBlock(blocks[piece]), values[piece]
            for g in range(quant.groups):
                target[..., g * quant.group : (g + 1) * quant.group] = as_array(quant.values(block, g))
    return out


def quantize(
    quant: QuantType, values: NDArray[Any], weights: NDArray[Any] | None = None, threads: int = 1
) -> NDArray[np.uint8]:
    """Rows of blocks near to the values: uint8 [..., row bytes] from float32 [..., k].

    weights: float32 [k], by how much the squared errors of each column count, as an importance matrix has it.
    Types of eight and more bits take no heed of it.
    threads: how many share the work. The result depends neither on them nor on how rows are cut into pieces.
    Raises RequestError for a type without a quantiser, values of a type that float32 does not cover, values
    that the quantised type cannot hold, and weights that are none; FormatError where k is not whole blocks.
    """
    values = np.asarray(values)
    if quant.name not in QUANTIZERS:
        raise RequestError(
            f"Puna reads {quant.name} but cannot quantise to it", fix=f"use one of {', '.join(QUANTIZERS)}"
        )
    if values.ndim == 0 or not np.can_cast(values.dtype, np.float32, "safe"):
        raise RequestError(
            f"values to quantise must be float32 rows, not {values.dtype} {list(values.shape)}"
        )
    out = np.empty((*values.shape[:-1], quant.row_bytes(values.shape[-1])), np.uint8)
    source, target = split(values, quant.block), split(out, quant.bytes)
    columns = None if weights is None else column_weights(weights, values.shape[-1], quant.block)

    def fill(piece: tuple[int | slice, ...]) -> None:
        x = np.ascontiguousarray(source[piece], np.float32).reshape(-1, quant.block)
        w = None if columns is None else np.broadcast_to(columns, source.shape)[piece].reshape(x.shape)
        with np.errstate(all="ignore"):  # the quantisers check their results instead
            target[piece] = QUANTIZERS[quant.name](x, w).reshape(target[piece].shape)

    if threads == 1:
        for piece in pieces(quant, source.shape[:-1]):
            fill(piece)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(fill, pieces(quant, source.shape[:-1])):  # raises what a piece raised
                pass
    return out
