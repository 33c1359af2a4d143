"""Quantisers of GGML's first types.

Without weights they give the bits of GGML's reference quantisers: the scale comes from the block's extremes, codes are
rounded with the float32 scale, and only then is the scale rounded to the half that is stored. With weights, scales are
searched for. The types of eight bits take no heed of weights.
"""

from __future__ import annotations

import numpy as np

from puna.quants.quantizers.fits import affine_block, half, scaled_block
from puna.quants.quantizers.pack import below, joined, nibbles
from puna.quants.quantizers.search import Affine, Bytes, Floats, Levels, Scaled, inverse

__all__ = ["LEGACY_QUANTIZERS", "peaks"]

Q4 = Scaled(Levels(-8, 7), (-11, -10, -9, -8.5, -8, -7, 9))
Q5 = Scaled(Levels(-16, 15), (-18.5, -17, -16, -15, 14))
Q4_AFFINE, Q5_AFFINE = Affine(15, signed=True), Affine(31, signed=True)


def quantize_q4_0(x: Floats, w: Floats | None) -> Bytes:
    d, codes = symmetric(x, 4) if w is None else scaled_block(x, w, Q4)
    return joined(d, nibbles(codes))


def quantize_q4_1(x: Floats, w: Floats | None) -> Bytes:
    d, low, codes = affine(x, 4) if w is None else affine_block(x, w, Q4_AFFINE)
    return joined(d, low, nibbles(codes))


def quantize_q5_0(x: Floats, w: Floats | None) -> Bytes:
    d, codes = symmetric(x, 5) if w is None else scaled_block(x, w, Q5)
    return joined(d, fifth_bits(codes), nibbles(below(codes, 4)))


def quantize_q5_1(x: Floats, w: Floats | None) -> Bytes:
    d, low, codes = affine(x, 5) if w is None else affine_block(x, w, Q5_AFFINE)
    return joined(d, low, fifth_bits(codes), nibbles(below(codes, 4)))


def quantize_q8_0(x: Floats, w: Floats | None) -> Bytes:
    d, codes = eight_bits(x)
    return joined(half(d), codes.astype(np.int8).view(np.uint8))


def quantize_q8_1(x: Floats, w: Floats | None) -> Bytes:
    d, codes = eight_bits(x)
    total = d * np.add.reduce(codes, axis=1)
    return joined(half(d), half(total), codes.astype(np.int8).view(np.uint8))


LEGACY_QUANTIZERS = {
    "Q4_0": quantize_q4_0,
    "Q4_1": quantize_q4_1,
    "Q5_0": quantize_q5_0,
    "Q5_1": quantize_q5_1,
    "Q8_0": quantize_q8_0,
    "Q8_1": quantize_q8_1,
}


def symmetric(x: Floats, bits: int) -> tuple[Bytes, Bytes]:
    """Scales uint8 [n, 2] and codes [n, 32] such that the value of largest magnitude gets code 0."""
    zero = 1 << (bits - 1)
    d = peaks(x) / np.float32(-zero)
    return half(d), whole(x * inverse(d)[:, None] + np.float32(zero + 0.5), bits)


def affine(x: Floats, bits: int) -> tuple[Bytes, Bytes, Bytes]:
    """Scales and minima uint8 [n, 2] and codes [n, 32] that span each block's least to greatest value."""
    low = x.min(axis=1)
    d = (x.max(axis=1) - low) / np.float32((1 << bits) - 1)
    codes = whole((x - low[:, None]) * inverse(d)[:, None] + np.float32(0.5), bits)
    return half(d), half(low), codes


def eight_bits(x: Floats) -> tuple[Floats, Floats]:
    """Scales [n] and codes [n, 32] from -127 to 127, ties away from zero."""
    d = np.abs(x).max(axis=1) / np.float32(127)
    steps = x * inverse(d)[:, None]
    down = np.trunc(steps)
    return d, down + np.trunc(2 * (steps - down))


def peaks(x: Floats) -> Floats:
    """The value of largest magnitude [n] of each block, the first of several."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)[:, 0]


def whole(steps: Floats, bits: int) -> Bytes:
    return np.clip(steps, 0, (1 << bits) - 1).astype(np.uint8)


def fifth_bits(codes: Bytes) -> Bytes:
    """Bit 4 of 32 codes in 4 bytes, the first value's lowest."""
    return np.packbits(codes >> 4, axis=-1, bitorder="little")
