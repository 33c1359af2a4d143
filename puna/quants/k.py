# ruff: noqa: N801 - a type's class bears GGML's name of it
"""GGML's K types: blocks of 256 values, groups with small integer scales; layouts as in ggml-common.h."""

from __future__ import annotations

from puna.quants.base import QuantType
from puna.quants.lanes import Block, Lanes

__all__ = ["K_TYPES", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"]


class Q2_K(QuantType):
    """d * s * q - dmin * m. 16 bytes of four-bit s and m of groups of 16, 64 of two-bit codes, f16 d, f16 dmin.

    Each half of the block, 8 groups, has 32 code bytes: bits 0 and 1 are groups 0 and 1, bits 2 and 3 the next two.
    """

    id, block, bytes, group, bits, step_bits = 10, 256, 84, 16, 2, 4

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(80)

    def step(self, x: Block, g: int) -> Lanes:
        return x.u8(g) & 15

    def low(self, x: Block, g: int) -> Lanes:
        return -x.f16(82)

    def low_step(self, x: Block, g: int) -> Lanes:
        return x.u8(g) >> 4

    def codes(self, x: Block, g: int) -> Lanes:
        return pairs(x, g, 16)


class Q3_K(QuantType):
    """d * (s - 32) * (q - 4). 32 bytes of third bits, 64 of lower pairs as in Q2_K, 12 of six-bit s, f16 d.

    Bit g // 2 of the third bits' bytes is groups g and g + 1, g even. Low nibbles of the first 8 bytes of s are groups
    0 to 7, high ones 8 to 15; the upper bits of groups g, g + 4, g + 8 and g + 12 lie in byte 8 + g, lowest first.
    """

    id, block, bytes, group, bits, zero = 11, 256, 110, 16, 3, 4

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(108)

    def step(self, x: Block, g: int) -> Lanes:
        low, high = x.u8(96 + g % 8) >> g // 8 * 4, x.u8(104 + g % 4) >> g // 4 * 2
        return (((low & 15) | ((high & 3) << 4)) - 32).as_i8()

    def codes(self, x: Block, g: int) -> Lanes:
        return pairs(x, g, 32) | (((x.u8(g % 2 * 16, 16) >> g // 2) & 1) << 2)


class KAffine(QuantType):
    """d * s * q - dmin * m. f16 d, f16 dmin, 12 bytes of six-bit s and m of 8 groups of 32, the codes."""

    block, group, step_bits = 256, 32, 6

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


class Q8_K(QuantType):
    """d * q. f32 d, 256 signed bytes, i16 sums of each 16 of them."""

    id, block, bytes, group, bits, zero, unit_kind = 15, 256, 292, 32, 8, 128, "F32"

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f32(0)

    def codes(self, x: Block, g: int) -> Lanes:
        return x.u8(4 + g * 32, 32) ^ 128

    def sums(self, x: Block) -> Lanes:
        return x.u16(260, 16)


K_TYPES = Q2_K(), Q3_K(), Q4_K(), Q5_K(), Q6_K(), Q8_K()


def pairs(x: Block, g: int, at: int) -> Lanes:
    """Sixteen two-bit codes of group g of 16, of 64 bytes from `at`."""
    return (x.u8(at + g // 8 * 32 + g % 2 * 16, 16) >> g // 2 % 4 * 2) & 3


def six_bits(x: Block, g: int, at: int) -> Lanes:
    """Scale (`at` 4) or minimum (`at` 8) of group g, one u8 lane.

    Groups 0 to 3 lie in the low six bits of bytes `at` to `at` + 3. Groups 4 to 7 have their low four bits in
    the nibbles of bytes 12 to 15 (scales low, minima high), their upper two atop bytes `at` to `at` + 3.
    """
    if g < 4:
        return x.u8(at + g) & 63
    return ((x.u8(8 + g) >> (at - 4)) & 15) | ((x.u8(at + g - 4) >> 6) << 4)
