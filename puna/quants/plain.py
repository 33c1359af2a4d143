"""Float types: a value is its own code."""

from __future__ import annotations

from puna.quants.base import QuantType
from puna.quants.lanes import Block, Lanes

__all__ = ["BF16", "F16", "F32", "PLAIN"]


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


PLAIN = F32(), F16(), BF16()
