"""Plain types: a value is its own code."""

from __future__ import annotations

from puna.quants.base import QuantType
from puna.quants.lanes import Block, Lanes

__all__ = ["BF16", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "PLAIN"]


class F32(QuantType):
    """IEEE binary32."""

    id, block, bytes, group, bits = 0, 1, 4, 1, 32

    def codes(self, x: Block, g: int) -> Lanes:
        return x.f32(0)


class F16(QuantType):
    """IEEE binary16."""

    id, block, bytes, group, bits = 1, 1, 2, 1, 16

    def codes(self, x: Block, g: int) -> Lanes:
        return x.f16(0)


class BF16(QuantType):
    """bfloat16: the upper half of a binary32."""

    id, block, bytes, group, bits = 30, 1, 2, 1, 16

    def codes(self, x: Block, g: int) -> Lanes:
        return (x.u16(0).u32() << 16).as_f32()


class F64(QuantType):
    """IEEE binary64, its value rounded to binary32."""

    id, block, bytes, group, bits = 28, 1, 8, 1, 64

    def codes(self, x: Block, g: int) -> Lanes:
        return x.read("f64", 0, 1)


class I8(QuantType):
    """A signed byte."""

    id, block, bytes, group, bits = 24, 1, 1, 1, 8

    def codes(self, x: Block, g: int) -> Lanes:
        return x.i8(0).f32()


class I16(QuantType):
    """Two bytes of a signed integer."""

    id, block, bytes, group, bits = 25, 1, 2, 1, 16

    def codes(self, x: Block, g: int) -> Lanes:
        return x.read("i16", 0, 1)


class I32(QuantType):
    """Four bytes of a signed integer, its value rounded to binary32."""

    id, block, bytes, group, bits = 26, 1, 4, 1, 32

    def codes(self, x: Block, g: int) -> Lanes:
        return x.read("i32", 0, 1)


class I64(QuantType):
    """Eight bytes of a signed integer, its value rounded to binary32."""

    id, block, bytes, group, bits = 27, 1, 8, 1, 64

    def codes(self, x: Block, g: int) -> Lanes:
        return x.read("i64", 0, 1)


PLAIN = F32(), F16(), BF16(), F64(), I8(), I16(), I32(), I64()
