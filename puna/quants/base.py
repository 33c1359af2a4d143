"""What a quantisation type is: its sizes, and how its bytes turn into codes, scales and offsets."""

from __future__ import annotations

from abc import ABC
from typing import Literal

from puna.errors import FormatError
from puna.quants.grids import Grid
from puna.quants.lanes import Block, Lanes

__all__ = ["QuantType"]


class QuantType(ABC):
    """A tensor element type of GGML. Each group g of a block holds

        value[i] = scale(g) * (code[i] - zero) + offset(g)

    in float32, rounded after each operation in that order: bit for bit what GGML's own dequantisers give.

    id       GGML's number of the type, as in a GGUF file
    block    values a block holds
    bytes    bytes a block takes
    group    values that share a scale; divides block
    bits     bits of what is stored for a code: the code itself, its place in `table`, or an entry of `grid`
    zero     code that stands for the scale's multiple 0; codes are unsigned, so an integer kernel multiplies
             them as they are and subtracts zero * (sum of the other side) once a group

    A scale is written as unit(x, g) * step(x, g), times `factor`: a float that groups share, and a small integer of the
    group, where the type has one; an offset likewise, as low(x, g) * low_step(x, g). Backends store these parts
    as they are. A plain type has no unit: its codes are the values, as f32 lanes.

    factor       a power of two that every scale is multiplied by, which changes no rounding
    unit_kind    F16, BF16 or F32: what holds a unit, and a low, without loss
    shared       values that share a unit; 0 stands for the whole block
    step_bits    bits of a step and of a low step, 4, 6 or 8
    odd_steps    whether a step s stands for 2 s + 1
    levels       how many codes there are, where that is far less than 2 to the bits
    table        code of each place, u8, in a type that stores places
    grid         codes, several an entry, in a type that stores entries; `signs` may turn them around zero

    A type defines `codes`; or `places` and a table; or `places`, a grid, and perhaps `signs`.
    """

    id: int
    block: int
    bytes: int
    group: int
    bits: int
    zero: int = 0
    factor: float = 1.0
    unit_kind: Literal["F16", "BF16", "F32"] = "F16"
    shared: int = 0
    step_bits: int = 8
    odd_steps: bool = False
    levels: int = 0
    table: tuple[int, ...] = ()
    grid: Grid | None = None

    def codes(self, x: Block, g: int) -> Lanes:
        """The codes of group g in order: `group` lanes, u8 (f32 in a plain type)."""
        if self.grid is None:
            return self.places(x, g).lookup(self.table)
        codes, signs = self.places(x, g).gather(self.grid), self.signs(x, g)
        if signs is None:
            return codes
        flips = signs.bits() * 255  # all bits of a negative value's lane
        return ((codes ^ flips) - flips) + self.zero

    def places(self, x: Block, g: int) -> Lanes:
        """What is stored for group g: `group` u8 lanes of places in the table, or u16 lanes of entries of the grid."""
        raise NotImplementedError

    def signs(self, x: Block, g: int) -> Lanes | None:
        """A bit a value, set where it is negative: group / 8 u8 lanes, the first value's bit lowest.

        With signs the grid holds sizes, which are below `zero`, and a code is zero + size or zero - size.
        """
        return None

    def unit(self, x: Block, g: int) -> Lanes | None:
        """The shared factor of group g's scale, one f32 lane; None in a plain type."""
        return None

    def step(self, x: Block, g: int) -> Lanes | None:
        """What the unit is multiplied by for group g: one u8 or i8 lane; None stands for 1."""
        return None

    def low(self, x: Block, g: int) -> Lanes | None:
        """The shared factor of group g's offset, as `unit`; None where the type has no offsets."""
        return None

    def low_step(self, x: Block, g: int) -> Lanes | None:
        """What `low` is multiplied by for group g, as `step`."""
        return None

    def sums(self, x: Block) -> Lanes | None:
        """Words of the block that no value depends on: sums of codes, there for a kernel's sake."""
        return None

    def scale(self, x: Block, g: int) -> Lanes | None:
        """The scale of group g, one f32 lane; None in a plain type."""
        step = self.step(x, g)
        if step is not None and self.odd_steps:
            step = (step << 1) | 1
        scale = product(self.unit(x, g), step)
        return scale if scale is None or self.factor == 1 else scale * self.factor

    def offset(self, x: Block, g: int) -> Lanes | None:
        """The offset of group g, one f32 lane; None where the type has none."""
        return product(self.low(x, g), self.low_step(x, g))

    def values(self, x: Block, g: int) -> Lanes:
        """The values of group g: `group` f32 lanes."""
        codes, scale, offset = self.codes(x, g), self.scale(x, g), self.offset(x, g)
        if scale is None:
            return codes
        steps = codes.f32() - self.zero if self.zero else codes.f32()
        return scale * steps if offset is None else scale * steps + offset

    @property
    def name(self) -> str:
        """GGML's name of the type, which is the class's."""
        return type(self).__name__

    @property
    def groups(self) -> int:
        """Groups in a block."""
        return self.block // self.group

    @property
    def unit_groups(self) -> int:
        """Groups that share a unit."""
        return (self.shared or self.block) // self.group

    @property
    def is_float(self) -> bool:
        """Whether codes are the values themselves."""
        return type(self).unit is QuantType.unit

    @property
    def has_offset(self) -> bool:
        """Whether groups have an offset."""
        return type(self).low is not QuantType.low

    @property
    def has_steps(self) -> bool:
        """Whether groups have steps, for scales and for offsets alike."""
        return type(self).step is not QuantType.step

    @property
    def bits_per_weight(self) -> float:
        """Stored bits for each value, scales included."""
        return self.bytes * 8 / self.block

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of `k` values. Raises FormatError where they do not fill whole blocks."""
        if k < 0 or k % self.block:
            raise FormatError(f"a row of {k} values does not divide into {self.name} blocks of {self.block}")
        return k // self.block * self.bytes

    def __repr__(self) -> str:
        return self.name


def product(unit: Lanes | None, step: Lanes | None) -> Lanes | None:
    return unit if unit is None or step is None else unit * step.f32()
