"""What tests of quantisation types share: values by other means than puna.quants, and blocks to try."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np

from puna.quants import QuantType

__all__ = ["Array", "bits", "expected", "finite_blocks", "random_rows", "set_halves"]

Array = np.ndarray[Any, Any]

DOUBLED_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def q8_1(blocks: Array) -> Array:
    return blocks[:, :2].view("<f2").astype(np.float32) * blocks[:, 4:].view(np.int8)


def q8_k(blocks: Array) -> Array:
    return blocks[:, :4].view("<f4") * blocks[:, 4:260].view(np.int8)


def q1_0(blocks: Array) -> Array:
    d = blocks[:, :2].view("<f2").astype(np.float32)
    return np.where(np.unpackbits(blocks[:, 2:], axis=-1, bitorder="little"), d, -d)


def q2_0(blocks: Array) -> Array:
    codes = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3  # [blocks, 16, 4]
    return blocks[:, :2].view("<f2").astype(np.float32) * (codes.reshape(-1, 64).astype(np.int8) - 1)


def nvfp4(blocks: Array) -> Array:
    nibbles = np.stack([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], -1).reshape(-1, 4, 8, 2)
    values = DOUBLED_E2M1[nibbles.swapaxes(2, 3)].reshape(-1, 4, 16)
    exponent, fraction = blocks[:, :4] >> 3 & 15, blocks[:, :4] & 7
    normal = np.ldexp(8.0 + fraction, exponent.astype(int) - 10)
    d = np.where(exponent == 0, np.ldexp(fraction.astype(float), -9), normal) / 2
    d = np.where(blocks[:, :4] == 127, 0, d).astype(np.float32)
    return np.asarray(d[..., None] * values)


def words(kind: str) -> Callable[[Array], Array]:
    return lambda blocks: blocks.view(kind).astype(np.float32)


# By the definitions in ggml-quants.c, for types that some version of the gguf package cannot dequantise.
TRUTHS: dict[str, Callable[[Array], Array]] = {
    "F64": words("<f8"),
    "I8": words("<i1"),
    "I16": words("<i2"),
    "I32": words("<i4"),
    "I64": words("<i8"),
    "Q8_1": q8_1,
    "Q8_K": q8_k,
    "Q1_0": q1_0,
    "Q2_0": q2_0,
    "NVFP4": nvfp4,
}


def expected(quant: QuantType, raw: Array) -> Array:
    """The values of rows of blocks: the gguf package's where it has the type, else by definition."""
    with np.errstate(all="ignore"):
        try:
            return gguf.dequantize(raw, gguf.GGMLQuantizationType(quant.id))
        except (NotImplementedError, ValueError):
            blocks = np.ascontiguousarray(raw).reshape(-1, quant.bytes)
            return TRUTHS[quant.name](blocks).reshape(*raw.shape[:-1], -1)


def bits(values: Array) -> Array:
    """float32 bits with one NaN for all: IEEE 754 leaves an operation's NaN sign and payload open."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


def random_rows(quant: QuantType, shape: tuple[int, ...], k: int) -> Array:
    """Rows of any bytes, uint8 [*shape, row bytes]."""
    rng = np.random.default_rng(quant.id)
    return rng.integers(0, 256, (*shape, quant.row_bytes(k)), dtype=np.uint8)


def finite_blocks(quant: QuantType, n: int) -> Array:
    """Blocks of any bytes, uint8 [n, bytes], but for those that give infinities or NaN."""
    raw = random_rows(quant, (4 * n + 8,), quant.block)
    return raw[np.isfinite(expected(quant, raw)).all(axis=-1)][:n]


def set_halves(quant: QuantType, raw: Array, at: int, halves: Array) -> None:
    """Set the half float at byte `at` of each block; in IQ1_M, that of the nibbles atop four words from there."""
    if quant.name != "IQ1_M":
        raw[..., at : at + 2] = halves[:, None].view(np.uint8)
        return
    for i in range(4):
        raw[..., at + 2 * i + 1] = raw[..., at + 2 * i + 1] & 15 | (halves >> 4 * i & 15) << 4
