# ruff: noqa: N801 - a type's class bears GGML's name of it
"""GGML's IQ types, whose codes come from codebooks; layouts as in ggml-common.h."""

from __future__ import annotations

from puna.quants import grids
from puna.quants.base import QuantType
from puna.quants.lanes import Block, Lanes

__all__ = [
    "IQ1_M",
    "IQ1_S",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
    "IQ3_S",
    "IQ3_XXS",
    "IQ4_NL",
    "IQ4_XS",
    "IQ_TYPES",
]

# ggml-common.h's kvalues_iq4nl around a zero of 128: sixteen steps that widen with their size.
WIDENING = 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241


class IQ4_NL(QuantType):
    """d * value. f16 d, 16 bytes of nibbles: the low ones are values 0 to 15, the high ones 16 to 31."""

    id, block, bytes, group, bits, zero, table = 20, 32, 18, 32, 4, 128, WIDENING

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)

    def places(self, x: Block, g: int) -> Lanes:
        n = x.u8(2, 16)
        return x.cat(n & 15, n >> 4)


class IQ4_XS(QuantType):
    """d * (s - 32) * value in groups of 32. f16 d, u16 upper bit pairs of s, 4 bytes of lower nibbles, the nibbles."""

    id, block, bytes, group, bits, zero, table = 23, 256, 136, 32, 4, 128, WIDENING

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)

    def step(self, x: Block, g: int) -> Lanes:
        low, high = x.u8(4 + g // 2) >> g % 2 * 4, (x.u16(2) >> g * 2).u8()
        return (((low & 15) | ((high & 3) << 4)) - 32).as_i8()

    def places(self, x: Block, g: int) -> Lanes:
        n = x.u8(8 + g * 16, 16)
        return x.cat(n & 15, n >> 4)


class SignedGrid(QuantType):
    """d * (2 s + 1) * sizes with signs, times `factor`: f16 d first, s four bits a group."""

    block, zero, step_bits, odd_steps = 256, 64, 4, True

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)


class IQ2_XXS(SignedGrid):
    """For each group of 32: 4 bytes of entries; a u32 of four times seven signs, the eighth even, and s atop."""

    id, bytes, group, bits, factor, grid = 16, 66, 32, 8, 0.125, grids.IQ2_XXS

    def step(self, x: Block, g: int) -> Lanes:
        return (x.u32(6 + g * 8) >> 28).u8()

    def places(self, x: Block, g: int) -> Lanes:
        return x.u8(2 + g * 8, 4).u16()

    def signs(self, x: Block, g: int) -> Lanes:
        return four_sevens(x, 6 + g * 8)


class IQ2_XS(SignedGrid):
    """For each 8 values a u16, an entry of nine bits and seven signs, the eighth even; then nibbles of s."""

    id, bytes, group, bits, factor, grid = 17, 74, 16, 9, 0.125, grids.IQ2_XS

    def step(self, x: Block, g: int) -> Lanes:
        return (x.u8(66 + g // 2) >> g % 2 * 4) & 15

    def places(self, x: Block, g: int) -> Lanes:
        return x.u16(2 + g * 4, 2) & 511

    def signs(self, x: Block, g: int) -> Lanes:
        return even((x.u16(2 + g * 4, 2) >> 9).u8())


class IQ2_S(SignedGrid):
    """32 bytes of entries, 32 of signs, 8 of the entries' upper bit pairs, 8 of nibbles of s of groups of 16."""

    id, bytes, group, bits, factor, grid = 22, 82, 16, 10, 0.125, grids.IQ2_S

    def step(self, x: Block, g: int) -> Lanes:
        return (x.u8(74 + g // 2) >> g % 2 * 4) & 15

    def places(self, x: Block, g: int) -> Lanes:
        high = x.u8(66 + g // 2).bits()[g % 2 * 4 : g % 2 * 4 + 4]
        return x.u8(2 + g * 2, 2).u16() | ((high[::2] | (high[1::2] << 1)).u16() << 8)

    def signs(self, x: Block, g: int) -> Lanes:
        return x.u8(34 + g * 2, 2)


class IQ3_XXS(SignedGrid):
    """64 bytes of entries; for each group of 32 a u32 of four times seven signs, the eighth even, and s atop."""

    id, bytes, group, bits, factor, grid = 18, 98, 32, 8, 0.25, grids.IQ3_XXS

    def step(self, x: Block, g: int) -> Lanes:
        return (x.u32(66 + g * 4) >> 28).u8()

    def places(self, x: Block, g: int) -> Lanes:
        return x.u8(2 + g * 8, 8).u16()

    def signs(self, x: Block, g: int) -> Lanes:
        return four_sevens(x, 66 + g * 4)


class IQ3_S(SignedGrid):
    """64 bytes of entries, 8 of their ninth bits, 32 of signs, 4 of nibbles of s of groups of 32."""

    id, bytes, group, bits, grid = 21, 110, 32, 9, grids.IQ3_S

    def step(self, x: Block, g: int) -> Lanes:
        return (x.u8(106 + g // 2) >> g % 2 * 4) & 15

    def places(self, x: Block, g: int) -> Lanes:
        return x.u8(2 + g * 8, 8).u16() | (x.u8(66 + g).bits().u16() << 8)

    def signs(self, x: Block, g: int) -> Lanes:
        return x.u8(74 + g * 4, 4)


class IQ1_S(QuantType):
    """d * (2 s + 1) * (point +- 1/8) in groups of 32. f16 d, 32 bytes of points, u16 upper bits and s of a group.

    Such a u16 holds three more bits of each of four points, three of s, and the sign of the eighth. With the sign an
    entry has 12 bits, and its codes are eight times the values.
    """

    id, block, bytes, group, bits, zero, factor = 19, 256, 50, 32, 12, 9, 0.125
    step_bits, odd_steps, grid = 4, True, grids.IQ1

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)

    def step(self, x: Block, g: int) -> Lanes:
        return (x.u16(34 + g * 2) >> 12).u8() & 7

    def places(self, x: Block, g: int) -> Lanes:
        b = x.u16(34 + g * 2).bits()
        high = b[:12:3] | (b[1:12:3] << 1) | (b[2:12:3] << 2) | (b[15:] << 3)
        return x.u8(2 + g * 4, 4).u16() | (high.u16() << 8)


class IQ1_M(QuantType):
    """As IQ1_S in groups of 16, a sign each point. 32 bytes of points, 16 of nibbles of upper bits, four u16.

    Each u16 has three bits of s of four groups, and atop a nibble of the f16 d, the lowest first.
    """

    id, block, bytes, group, bits, zero, factor = 29, 256, 56, 16, 12, 9, 0.125
    step_bits, odd_steps, grid = 4, True, grids.IQ1

    def unit(self, x: Block, g: int) -> Lanes:
        nibbles = [(x.u16(48 + i * 2) >> 12) << i * 4 for i in range(4)]
        return (nibbles[0] | nibbles[1] | nibbles[2] | nibbles[3]).as_f16()

    def step(self, x: Block, g: int) -> Lanes:
        return (x.u16(48 + g // 4 * 2) >> g % 4 * 3).u8() & 7

    def places(self, x: Block, g: int) -> Lanes:
        high = x.u8(32 + g)
        return x.u8(g * 2, 2).u16() | (x.cat(high & 15, high >> 4).u16() << 8)


IQ_TYPES = IQ1_S(), IQ1_M(), IQ2_XXS(), IQ2_XS(), IQ2_S(), IQ3_XXS(), IQ3_S(), IQ4_NL(), IQ4_XS()


def four_sevens(x: Block, at: int) -> Lanes:
    """The sign bytes of the u32 at byte `at`, whose lower 28 bits are four times seven signs."""
    word = x.u32(at)
    return even(x.cat(word, word >> 7, word >> 14, word >> 21).u8() & 127)


def even(signs: Lanes) -> Lanes:
    """Seven signs a u8 lane, with the eighth that makes their number even."""
    folded = signs ^ (signs >> 4)
    folded = folded ^ (folded >> 2)
    return signs | ((folded ^ (folded >> 1)) << 7)
