"""What a quantisation type is: its sizes, and how its bytes turn into codes, scales and offsets."""

from __future__ import annotations

from abc import ABC, abstractmethod

from puna.errors import FormatError
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
    bits     bits of a code
    zero     code that stands for the scale's multiple 0; codes are unsigned, so an integer kernel multiplies
             them as they are and subtracts zero * (sum of the other side) once a group

    A scale is written as unit(x) * step(x, g): a half float that all groups of a block share, and a small
    integer of the group, where the type has one; an offset likewise, as low(x) * low_step(x, g). Backends store
    these parts as they are. A float type has no unit: its codes are the values, as f32 lanes.
    """

    id: int
    block: int
    bytes: int
    group: int
    bits: int
    zero: int = 0

    @abstractmethod
    def codes(self, x: Block, g: int) -> Lanes:
        """The codes of group g in order: `group` lanes, u8 (f32 in a float type)."""

    def unit(self, x: Block) -> Lanes | None:
        """The factor of all scales of a block, one f32 lane that holds a half float; None in a float type."""
        return None

    def step(self, x: Block, g: int) -> Lanes | None:
        """What the unit is multiplied by for group g: one u8 or i8 lane; None stands for 1."""
        return None

    def low(self, x: Block) -> Lanes | None:
        """The factor of all offsets of a block, as `unit`; None where the type has no offsets."""
        return None

    def low_step(self, x: Block, g: int) -> Lanes | None:
        """What `low` is multiplied by for group g, as `step`."""
        return None

    def scale(self, x: Block, g: int) -> Lanes | None:
        """The scale of group g, one f32 lane; None in a float type."""
        return product(self.unit(x), self.step(x, g))

    def offset(self, x: Block, g: int) -> Lanes | None:
        """The offset of group g, one f32 lane; None where the type has none."""
        return product(self.low(x), self.low_step(x, g))

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
