"""Four-bit floats with a scale of eight bits; layouts as in ggml-common.h."""

from __future__ import annotations

from puna.quants.base import QuantType
from puna.quants.lanes import Block, Lanes

__all__ = ["MX", "MXFP4", "NVFP4"]

# Values of E2M1 (OCP Microscaling Formats 1.0, 5.3.3), doubled, around a zero of 12.
E2M1 = 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0


class MXFP4(QuantType):
    """2 ** (e - 128) * (value - 12). E8M0 e, 16 bytes of nibbles: the low ones are values 0 to 15."""

    id, block, bytes, group, bits, zero = 39, 32, 17, 32, 4, 12
    unit_kind, table = "BF16", E2M1

    def unit(self, x: Block, g: int) -> Lanes:
        e = x.u8(0).u32()
        half = e >> 1  # in two factors, as the least powers are subnormal
        return ((half + 63) << 23).as_f32() * ((e - half + 63) << 23).as_f32()

    def places(self, x: Block, g: int) -> Lanes:
        n = x.u8(1, 16)
        return x.cat(n & 15, n >> 4)


class NVFP4(QuantType):
    """d / 2 * (value - 12). E4M3 d of 4 groups of 16, each a positive number; 8 bytes of nibbles a group.

    The byte 127, E4M3's NaN, stands for 0 and the sign bit for nothing.
    """

    id, block, bytes, group, bits, zero = 40, 64, 36, 16, 4, 12
    shared, table = 16, E2M1

    def unit(self, x: Block, g: int) -> Lanes:
        e, is_number = x.u8(g).u16(), ((x.u8(g) ^ 127).u16() + 255) >> 8
        return (((e & 127) << 7) * is_number).as_f16() * 128  # half floats have 8 more in the exponent

    def places(self, x: Block, g: int) -> Lanes:
        n = x.u8(4 + g * 8, 8)
        return x.cat(n & 15, n >> 4)


MX = MXFP4(), NVFP4()
