"""Quantisers of GGML's K types; the layouts are told by the classes in `puna.quants.k`."""

from __future__ import annotations

import numpy as np

from puna.quants.quantizers.fits import affine_groups, refuse, scaled_groups
from puna.quants.quantizers.legacy import peaks
from puna.quants.quantizers.search import Affine, Bytes, Floats, Levels, Scaled, inverse

__all__ = ["K_QUANTIZERS", "packed"]

Q2, Q4, Q5 = (Affine(top, signed=False) for top in (3, 15, 31))
Q3 = Scaled(Levels(-4, 3), (-5.75, -4.75, -4.25, -3.75, -3.25, 4.75))
Q6 = Scaled(Levels(-32, 31), (-33, -32, -31, -30, 29))
FOUR_BITS = Scaled(Levels(0, 15), range(12, 18))
SIX_BITS = Scaled(Levels(0, 63), range(54, 67))
SIGNED_SIX_BITS = Scaled(Levels(-32, 31), (-33, -32, -31, -30, 30, 31))
EIGHT_BITS = Scaled(Levels(-128, 127), range(-132, -119, 2))


def quantize_q2_k(x: Floats, w: Floats | None) -> Bytes:
    d, low, steps, low_steps, codes = affine_groups(x, w, 16, Q2, FOUR_BITS)
    return joined(steps | (low_steps << 4), pairs(codes), d, low)


def quantize_q3_k(x: Floats, w: Floats | None) -> Bytes:
    d, steps, codes = scaled_groups(x, w, 16, Q3, SIGNED_SIX_BITS)
    third = packed((codes >> 2).reshape(-1, 8, 32), 1, 1)
    low = packed(steps.reshape(-1, 2, 8) & 15, 1, 4)
    high = packed(steps.reshape(-1, 4, 4) >> 4, 1, 2)
    return joined(third, pairs(codes & 3), low, high, d)


def quantize_q4_k(x: Floats, w: Floats | None) -> Bytes:
    d, low, steps, low_steps, codes = affine_groups(x, w, 32, Q4, SIX_BITS)
    return joined(d, low, six_bits(steps, low_steps), pairs_of_nibbles(codes))


def quantize_q5_k(x: Floats, w: Floats | None) -> Bytes:
    d, low, steps, low_steps, codes = affine_groups(x, w, 32, Q5, SIX_BITS)
    fifth = packed(codes >> 4, 1, 1)
    return joined(d, low, six_bits(steps, low_steps), fifth, pairs_of_nibbles(codes & 15))


def quantize_q6_k(x: Floats, w: Floats | None) -> Bytes:
    d, steps, codes = scaled_groups(x, w, 16, Q6, EIGHT_BITS)
    low = packed(codes.reshape(-1, 2, 2, 64) & 15, 2, 4)
    return joined(low, pairs(codes >> 4), steps ^ 128, d)


def quantize_q8_k(x: Floats, w: Floats | None) -> Bytes:
    """GGML's reference quantiser, to the bit. Weights change nothing."""
    if not np.isfinite(x).all():
        refuse()
    per_step = np.float32(-127) / peaks(x)
    per_step = np.where(np.isinf(per_step), np.float32(0), per_step)
    codes = np.minimum(np.rint(x * per_step[:, None]), 127).astype(np.int8)
    sums = np.add.reduce(codes.reshape(-1, 16, 16), axis=2, dtype="<i2")
    d = inverse(per_step)[:, None].astype("<f4")
    return joined(d.view(np.uint8), codes.view(np.uint8), sums.view(np.uint8))


K_QUANTIZERS = {
    "Q2_K": quantize_q2_k,
    "Q3_K": quantize_q3_k,
    "Q4_K": quantize_q4_k,
    "Q5_K": quantize_q5_k,
    "Q6_K": quantize_q6_k,
    "Q8_K": quantize_q8_k,
}


def joined(*parts: Bytes) -> Bytes:
    """Blocks [n, bytes] of their parts [n, ...] in order."""
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def packed(codes: Bytes, axis: int, bits: int) -> Bytes:
    """Codes of so many bits side by side in bytes: the axis's first is lowest, and the axis goes."""
    first, *more = np.moveaxis(codes, axis, 0)
    result = first.copy()
    for i, code in enumerate(more, 1):
        result |= code << np.uint8(i * bits)
    return result


def pairs(codes: Bytes) -> Bytes:
    """Two-bit codes: in each half of a block four runs of 32 share 32 bytes, the first one lowest."""
    return packed(codes.reshape(-1, 2, 4, 32), 2, 2)


def pairs_of_nibbles(codes: Bytes) -> Bytes:
    """Four-bit codes: two groups of 32 share 32 bytes, the first one lower."""
    return packed(codes.reshape(-1, 4, 2, 32), 2, 4)


def six_bits(steps: Bytes, low_steps: Bytes) -> Bytes:
    """Two times eight numbers of six bits in 12 bytes, as `puna.quants.k.six_bits` reads them."""
    (a, b), (c, d) = (np.split(s, 2, axis=1) for s in (steps, low_steps))
    return np.concatenate([a | (b >> 4 << 6), c | (d >> 4 << 6), (b & 15) | (d << 4)], axis=1)
