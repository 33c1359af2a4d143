# ruff: noqa: N801 - a type's class bears GGML's name of it
"""GGML's types of one or two bits under one scale a block; layouts as in ggml-common.h."""

from __future__ import annotations

from puna.quants.base import QuantType
from puna.quants.lanes import Block, Lanes

__all__ = ["Q1_0", "Q2_0", "TERNARY", "TQ1_0", "TQ2_0"]

POWERS = 1, 3, 9, 27, 81


class TQ1_0(QuantType):
    """d * (q - 1), q below 3. 48 bytes of five codes, 4 of four, f16 d.

    A byte is a fraction of 256 whose digits to the base 3 are codes. The first digits of bytes 0 to 31 are group 0,
    the second ones group 1; groups 5, 6 and half of 7 lie so in bytes 32 to 47, the rest in bytes 48 to 51.
    """

    id, block, bytes, group, bits, zero, levels = 34, 256, 54, 32, 2, 1, 3

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(52)

    def codes(self, x: Block, g: int) -> Lanes:
        if g < 5:
            return digit(x.u8(0, 32), g)
        if g < 7:
            return x.cat(*(digit(x.u8(32, 16), g * 2 - 10 + i) for i in range(2)))
        return x.cat(digit(x.u8(32, 16), 4), *(digit(x.u8(48, 4), i) for i in range(4)))


class TQ2_0(QuantType):
    """d * (q - 1). 64 bytes of two-bit codes, f16 d. Bits 0 and 1 of 32 bytes are a group, bits 2 and 3 the next."""

    id, block, bytes, group, bits, zero = 35, 256, 66, 32, 2, 1

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(64)

    def codes(self, x: Block, g: int) -> Lanes:
        return (x.u8(g // 4 * 32, 32) >> g % 4 * 2) & 3


class Q1_0(QuantType):
    """d where a bit is set, -d where not. f16 d, 16 bytes of bits, lowest first."""

    id, block, bytes, group, bits, zero, table = 41, 128, 18, 32, 1, 1, (0, 2)

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)

    def places(self, x: Block, g: int) -> Lanes:
        return x.u8(2 + g * 4, 4).bits()


class Q2_0(QuantType):
    """d * (q - 1). f16 d, 16 bytes of four codes each, lowest first."""

    id, block, bytes, group, bits, zero = 42, 64, 18, 32, 2, 1

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)

    def codes(self, x: Block, g: int) -> Lanes:
        bits = x.u8(2 + g * 8, 8).bits()
        return bits[::2] | (bits[1::2] << 1)


TERNARY = TQ1_0(), TQ2_0(), Q1_0(), Q2_0()


def digit(x: Lanes, n: int) -> Lanes:
    """Digit n to the base 3 of u8 lanes as fractions of 256."""
    return ((x * POWERS[n]).u16() * 3 >> 8).u8()
