# ruff: noqa: N801 - a type's class bears GGML's name of it
"""GGML's first types: blocks of 32 values under one scale, layouts as in ggml-common.h."""

from __future__ import annotations

from puna.quants.base import QuantType
from puna.quants.lanes import Block, Lanes

__all__ = ["LEGACY", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q8_1"]


class Q4_0(QuantType):
    """d * (q - 8). f16 d, 16 bytes of nibbles: the low ones are values 0 to 15, the high ones 16 to 31."""

    id, block, bytes, group, bits, zero = 2, 32, 18, 32, 4, 8

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)

    def codes(self, x: Block, g: int) -> Lanes:
        return nibbles(x, 2)


class Q4_1(QuantType):
    """d * q + m. f16 d, f16 m, nibbles as in Q4_0."""

    id, block, bytes, group, bits = 3, 32, 20, 32, 4

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)

    def low(self, x: Block, g: int) -> Lanes:
        return x.f16(2)

    def codes(self, x: Block, g: int) -> Lanes:
        return nibbles(x, 4)


class Q5_0(QuantType):
    """d * (q - 16). f16 d, u32 of each value's fifth bit, nibbles of the lower four as in Q4_0."""

    id, block, bytes, group, bits, zero = 6, 32, 22, 32, 5, 16

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)

    def codes(self, x: Block, g: int) -> Lanes:
        return nibbles(x, 6) | (x.u32(2).bits() << 4)


class Q5_1(QuantType):
    """d * q + m. f16 d, f16 m, then as Q5_0."""

    id, block, bytes, group, bits = 7, 32, 24, 32, 5

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)

    def low(self, x: Block, g: int) -> Lanes:
        return x.f16(2)

    def codes(self, x: Block, g: int) -> Lanes:
        return nibbles(x, 8) | (x.u32(4).bits() << 4)


class Q8_0(QuantType):
    """d * q. f16 d, 32 signed bytes; flipping the top bit makes them unsigned codes around 128."""

    id, block, bytes, group, bits, zero = 8, 32, 34, 32, 8, 128

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)

    def codes(self, x: Block, g: int) -> Lanes:
        return x.u8(2, 32) ^ 128


class Q8_1(QuantType):
    """d * q. f16 d, f16 d * (sum of the q), 32 signed bytes as in Q8_0."""

    id, block, bytes, group, bits, zero = 9, 32, 36, 32, 8, 128

    def unit(self, x: Block, g: int) -> Lanes:
        return x.f16(0)

    def sums(self, x: Block) -> Lanes:
        return x.f16(2)

    def codes(self, x: Block, g: int) -> Lanes:
        return x.u8(4, 32) ^ 128


LEGACY = Q4_0(), Q4_1(), Q5_0(), Q5_1(), Q8_0(), Q8_1()


def nibbles(x: Block, at: int) -> Lanes:
    """32 four-bit codes in 16 bytes from byte `at`: all low nibbles, then all high ones."""
    n = x.u8(at, 16)
    return x.cat(n & 15, n >> 4)
