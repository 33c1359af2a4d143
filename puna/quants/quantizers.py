"""Round-to-nearest quantisers in NumPy: float32 [..., block] to uint8 [..., bytes].

The formulas are those of GGML's reference quantisers, to the bit: the scale comes from the block's extremes,
codes are rounded with the float32 scale, and only then is the scale rounded to the half that is stored.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from puna.errors import RequestError

__all__ = ["QUANTIZERS"]

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def quantize_f32(x: Floats) -> Bytes:
    return x.astype("<f4").view(np.uint8)


def quantize_f16(x: Floats) -> Bytes:
    halves = x.astype("<f2")
    if (np.isinf(halves) & np.isfinite(x)).any():
        raise RequestError("a value is too large for F16", fix="use BF16 or F32")
    return halves.view(np.uint8)


def quantize_bf16(x: Floats) -> Bytes:
    bits = x.view(np.uint32)
    nearest = bits + (0x7FFF + ((bits >> 16) & 1))  # to nearest, ties to even
    quiet = bits | 0x400000  # rounding could turn a NaN into an infinity or zero
    return (np.where(np.isnan(x), quiet, nearest) >> 16).astype("<u2").view(np.uint8)


def quantize_q4_0(x: Floats) -> Bytes:
    d, codes = symmetric(x, 4)
    return np.concatenate([half(d), nibbles(codes)], axis=-1)


def quantize_q4_1(x: Floats) -> Bytes:
    d, low, codes = affine(x, 4)
    return np.concatenate([half(d), half(low), nibbles(codes)], axis=-1)


def quantize_q5_0(x: Floats) -> Bytes:
    d, codes = symmetric(x, 5)
    return np.concatenate([half(d), fifth_bits(codes), nibbles(codes)], axis=-1)


def quantize_q5_1(x: Floats) -> Bytes:
    d, low, codes = affine(x, 5)
    return np.concatenate([half(d), half(low), fifth_bits(codes), nibbles(codes)], axis=-1)


def quantize_q8_0(x: Floats) -> Bytes:
    d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    steps = x * inverse(d)
    whole = np.trunc(steps)
    codes = whole + np.trunc(2 * (steps - whole))  # to nearest, ties away from zero
    return np.concatenate([half(d), codes.astype(np.int8).view(np.uint8)], axis=-1)


QUANTIZERS: dict[str, Callable[[Floats], Bytes]] = {
    "F32": quantize_f32,
    "F16": quantize_f16,
    "BF16": quantize_bf16,
    "Q4_0": quantize_q4_0,
    "Q4_1": quantize_q4_1,
    "Q5_0": quantize_q5_0,
    "Q5_1": quantize_q5_1,
    "Q8_0": quantize_q8_0,
}


def symmetric(x: Floats, bits: int) -> tuple[Floats, Bytes]:
    """Scale [..., 1] and codes [..., 32] such that the value of largest magnitude gets code 0."""
    zero = 1 << (bits - 1)
    peak = np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)
    d = peak / np.float32(-zero)
    return d, rounded(x * inverse(d) + np.float32(zero + 0.5), bits)


def affine(x: Floats, bits: int) -> tuple[Floats, Floats, Bytes]:
    """Scale and minimum [..., 1] and codes [..., 32] that span the block's least to greatest value."""
    low = x.min(axis=-1, keepdims=True)
    d = (x.max(axis=-1, keepdims=True) - low) / np.float32((1 << bits) - 1)
    return d, low, rounded((x - low) * inverse(d) + np.float32(0.5), bits)


def inverse(d: Floats) -> Floats:
    """1 / d, and 0 where that is infinite: such a scale is stored as 0, so the codes do not matter."""
    result = np.reciprocal(d)
    return np.where(np.isinf(result), np.float32(0), result)


def rounded(steps: Floats, bits: int) -> Bytes:
    return np.clip(steps, 0, (1 << bits) - 1).astype(np.uint8)


def half(d: Floats) -> Bytes:
    """Scales [..., 1] as stored [..., 2]. Raises RequestError where one is not finite as a half float."""
    halves = d.astype("<f2")
    if not np.isfinite(halves).all():
        raise RequestError(
            "a value is infinite, NaN or too large for a block's half-float scale",
            fix="keep this tensor in F32",
        )
    return halves.view(np.uint8)


def nibbles(codes: Bytes) -> Bytes:
    """The low four bits of 32 codes in 16 bytes: values 0 to 15 below, 16 to 31 above."""
    packed: Bytes = (codes[..., :16] & np.uint8(15)) | (codes[..., 16:] << np.uint8(4))
    return packed


def fifth_bits(codes: Bytes) -> Bytes:
    """Bit 4 of 32 codes in 4 bytes, the first value's lowest."""
    return np.packbits(codes >> 4, axis=-1, bitorder="little")
