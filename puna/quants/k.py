# ruff: noqa: N801 - a type's class bears GGML's name of it
"""GGML's K types: blocks of 256 values, groups with small integer scales; layouts as in ggml-common.h."""

from __future__ import annotations

from puna.quants.base import QuantType
from puna.quants.lanes import Block, Lanes

__all__ = ["K_TYPES", "Q4_K", "Q5_K", "Q6_K"]


class KAffine(QuantType):
    """d * s * q - dmin * m. f16 d, f16 dmin, 12 bytes of six-bit s and m of 8 groups of 32, the codes."""

    block, group = 256, 32

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)

    def step(self, x: Block, g: int) -> Lanes:
        return six_bits(x, g, 4)

    def low(self, x: Block, g: int) -> Lanes:
        return -x.f16(2)

    def low_step(self, x: Block, g: int) -> Lanes:
        return six_bits(x, g, 8)


class Q4_K(KAffine):
    """Codes: each 32 bytes hold two groups, the even one in their low nibbles."""

    id, bytes, bits = 12, 144, 4

    def codes(self, x: Block, g: int) -> Lanes:
        return (x.u8(16 + g // 2 * 32, 32) >> g % 2 * 4) & 15


class Q5_K(KAffine):
    """Codes: bit g of 32 bytes is the fifth bit of group g; then nibbles as in Q4_K."""

    id, bytes, bits = 13, 176, 5

    def codes(self, x: Block, g: int) -> Lanes:
        low = (x.u8(48 + g // 2 * 32, 32) >> g % 2 * 4) & 15
        return low | (((x.u8(16, 32) >> g) & 1) << 4)


class Q6_K(QuantType):
    """d * s * (q - 32) in groups of 16: 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed s, f16 d.

    Each half of the block, 8 groups, has 64 nibble bytes (groups 0 to 3 low, 4 to 7 high) and 32 pair bytes.
    """

    id, block, bytes, group, bits, zero = 14, 256, 210, 16, 6, 32

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(208)

    def step(self, x: Block, g: int) -> Lanes:
        return x.i8(192 + g)

    def codes(self, x: Block, g: int) -> Lanes:
        low = (x.u8(g // 8 * 64 + g % 4 * 16, 16) >> g // 4 % 2 * 4) & 15
        high = (x.u8(128 + g // 8 * 32 + g % 2 * 16, 16) >> g // 2 % 4 * 2) & 3
        return low | (high << 4)


K_TYPES = Q4_K(), Q5_K(), Q6_K()


def six_bits(x: Block, g: int, at: int) -> Lanes:
    """Scale (`at` 4) or minimum (`at` 8) of group g, one u8 lane.

    Groups 0 to 3 lie in the low six bits of bytes `at` to `at` + 3. Groups 4 to 7 have their low four bits in
    the nibbles of bytes 12 to 15 (scales low, minima high), their upper two atop bytes `at` to `at` + 3.
    """
    if g < 4:
        return x.u8(at + g) & 63
    return ((x.u8(8 + g) >> (at - 4)) & 15) | ((x.u8(at + g - 4) >> 6) << 4)
