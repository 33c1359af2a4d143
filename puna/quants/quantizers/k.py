"""Quantisers of GGML's K types; the classes in `puna.quants.k` tell the layouts."""

from __future__ import annotations

import numpy as np

from puna.quants.quantizers.fits import affine_groups, refuse, scaled_groups
from puna.quants.quantizers.legacy import peaks
from puna.quants.quantizers.pack import above, below, joined, nibbles, packed, pairs, six_bits
from puna.quants.quantizers.search import Affine, Bytes, Floats, Levels, Scaled, inverse

__all__ = ["K_QUANTIZERS", "SIGNED_SIX_BITS"]

Q2, Q4, Q5 = (Affine(top, signed=False) for top in (3, 15, 31))
Q3 = Scaled(Levels(-4, 3), (-5.75, -4.75, -4.25, -3.75, -3.25, 4.75))
Q6 = Scaled(Levels(-32, 31), (-33, -32, -31, -30, 29))
# The same for the steps of a block's groups.
FOUR_BITS = Scaled(Levels(0, 15), range(12, 18))
SIX_BITS = Scaled(Levels(0, 63), range(54, 67))
SIGNED_SIX_BITS = Scaled(Levels(-32, 31), (-33, -32, -31, -30, 30, 31))
EIGHT_BITS = Scaled(Levels(-128, 127), (*range(-132, -119, 2), -104))


def quantize_q2_k(x: Floats, w: Floats | None) -> Bytes:
    d, low, steps, low_steps, codes = affine_groups(x, w, 16, Q2, FOUR_BITS)
    return joined(steps | (low_steps << np.uint8(4)), pairs(codes), d, low)


def quantize_q3_k(x: Floats, w: Floats | None) -> Bytes:
    d, steps, codes = scaled_groups(x, w, 16, Q3, SIGNED_SIX_BITS)
    third = packed(above(codes, 2).reshape(-1, 8, 32), 1, 1)
    low, high = nibbles(below(steps, 4)), packed(above(steps, 4).reshape(-1, 4, 4), 1, 2)
    return joined(third, pairs(below(codes, 2)), low, high, d)


def quantize_q4_k(x: Floats, w: Floats | None) -> Bytes:
    d, low, steps, low_steps, codes = affine_groups(x, w, 32, Q4, SIX_BITS)
    return joined(d, low, six_bits(steps, low_steps), nibbles(codes.reshape(-1, 4, 64)))


def quantize_q5_k(x: Floats, w: Floats | None) -> Bytes:
    d, low, steps, low_steps, codes = affine_groups(x, w, 32, Q5, SIX_BITS)
    fifth, rest = packed(above(codes, 4), 1, 1), nibbles(below(codes, 4).reshape(-1, 4, 64))
    return joined(d, low, six_bits(steps, low_steps), fifth, rest)


def quantize_q6_k(x: Floats, w: Floats | None) -> Bytes:
    d, steps, codes = scaled_groups(x, w, 16, Q6, EIGHT_BITS)
    signed = steps ^ np.uint8(128)  # two's complement
    return joined(nibbles(below(codes, 4).reshape(-1, 2, 128)), pairs(above(codes, 4)), signed, d)


def quantize_q8_k(x: Floats, w: Floats | None) -> Bytes:
    """GGML's reference quantiser, to the bit. Weights change nothing."""
    if not np.isfinite(x).all():
        refuse()
    per_step = np.float32(-127) / peaks(x)
    per_step = np.where(np.isinf(per_step), np.float32(0), per_step)
    codes = np.minimum(np.rint(x * per_step[:, None]), np.float32(127)).astype(np.int8)
    d = inverse(per_step)[:, None].astype("<f4")
    sums = np.add.reduce(codes.reshape(-1, 16, 16), axis=2, dtype=np.int16).astype("<i2")
    return joined(d.view(np.uint8), codes.view(np.uint8), sums.view(np.uint8))


K_QUANTIZERS = {
    "Q2_K": quantize_q2_k,
    "Q3_K": quantize_q3_k,
    "Q4_K": quantize_q4_k,
    "Q5_K": quantize_q5_k,
    "Q6_K": quantize_q6_k,
    "Q8_K": quantize_q8_k,
}
