"""Weights as panels: 16 rows interleaved, so that one 64-byte vector feeds a 4-way byte dot of 16 rows.

Of a panel, first the codes, then the scales, each a stream that a kernel reads from front to back.

The codes of each block of the type are in one of three forms, of 32 numbers a row at a time. Four of these of 16 rows
are a step, 64 bytes once unpacked: byte 4 r + j is number j of row r.

    planes   The bits of codes, or of places in the type's table, in planes of 8, 4, 2 and 1 bits, the widest first. A
             plane of b bits is b vectors of 64 bytes; vector i holds, at bit b * m, the bits of step i + b * m.
             (4 bits: vector i has steps i and i + 4 in its low and high nibbles.)
    entries  Of a type with a grid: the low 8 bits of its entries; then their upper bits, in planes; then the signs of
             the values, where the type has them, in a plane of one bit. Of four entries of 16 rows, entry j of row
             4 n + i is byte 16 n + 4 j + i, so that their codes can be woven into steps 16 bytes at a time.
    trits    Of a type with 3 levels: five steps in a vector, whose bytes are fractions of 256; their digits to the
             base 3, the first first, are the codes. The last vector of a block may have fewer.

The scales of each block: for each unit those of 16 rows, and their lows where the type has them; then the numbers, for
each group its step and its low step, of 16 rows side by side. Numbers of less than 8 bits are in planes, four of them
in the place of a step: of n such vectors a plane of b bits is n b / 8 vectors, and vector i holds, at bit b * m, the
bits of vector i + m * n b / 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from puna.quants import QuantType, by_name
from puna.quants.lanes import NumpyBlock, as_array

__all__ = ["ROWS", "SPAN", "STEPS", "TRITS", "VECTOR", "Field", "Panel", "planes_of"]

ROWS = 16  # rows of a panel
SPAN = 32  # numbers of a row whose planes lie together
VECTOR = 64
STEPS = SPAN * ROWS // VECTOR
PLANES = (8, 4, 2, 1)
TRITS = 5  # steps of three levels that a vector holds
UNITS = {"F16": 2, "BF16": 2, "F32": 4}  # bytes of a unit


def planes_of(bits: int) -> tuple[int, ...]:
    """Bits of each plane, such as (4, 2) for six-bit numbers."""
    return tuple(plane for plane in PLANES if bits & plane)


@dataclass(frozen=True)
class Field:
    """Numbers of which a block has `count` a row, of so many bits each.  at: where they begin in the block's codes."""

    count: int
    bits: int
    at: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes for 16 rows."""
        return self.count * self.bits * ROWS // 8

    @property
    def span_bytes(self) -> int:
        """Bytes of SPAN numbers of 16 rows."""
        return self.bits * VECTOR


@dataclass(frozen=True)
class Panel:
    """The sizes of a quantised type's panels. `name` is the type's, so that a panel has a stable repr."""

    name: str

    @cached_property
    def quant(self) -> QuantType:
        return by_name(self.name)

    @property
    def form(self) -> str:
        """How codes lie: "planes", "entries" or "trits"."""
        return "entries" if self.quant.grid else "trits" if self.quant.levels == 3 else "planes"

    @property
    def has_signs(self) -> bool:
        """Whether a grid's entries are sizes."""
        return type(self.quant).signs is not QuantType.signs

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """What a row's block of codes consists of: codes or places; or entries' low and upper bits, and signs."""
        quant = self.quant
        if quant.grid is None:
            return (Field(quant.block, quant.bits),)
        sizes = [(quant.block // quant.grid.width, bits) for bits in (8, quant.bits - 8) if bits]
        found: list[Field] = []
        for count, bits in [*sizes, (quant.block, 1)] if self.has_signs else sizes:
            found.append(Field(count, bits, sum(field.nbytes for field in found)))
        return tuple(found)

    @cached_property
    def code_bits(self) -> int:
        """How many bits of a code can be set."""
        quant = self.quant
        if quant.grid is not None:
            return (max(quant.grid.data) + (quant.zero if self.has_signs else 0)).bit_length()
        return (max(quant.table) if quant.table else (quant.levels or 1 << quant.bits) - 1).bit_length()

    @cached_property
    def step_kind(self) -> str:
        """u8 or i8: how a group's step is stored."""
        step = self.quant.step(NumpyBlock(np.zeros((1, self.quant.bytes), np.uint8)), 0)
        return "i8" if step is not None and as_array(step).dtype == np.int8 else "u8"

    @property
    def parts(self) -> int:
        """2 where the type has offsets: a unit goes with a low, a step with a low step."""
        return 2 if self.quant.has_offset else 1

    @property
    def spans(self) -> int:
        """Spans in a block of the type."""
        return self.quant.block // SPAN

    @property
    def code_bytes(self) -> int:
        """Bytes of codes of a block, of all rows."""
        if self.form == "trits":
            return -(-self.spans * STEPS // TRITS) * VECTOR
        return sum(field.nbytes for field in self.fields)

    @property
    def span_bytes(self) -> int:
        """Bytes of codes for SPAN values of all rows, rounded up where they share vectors with others."""
        return -(-self.code_bytes // self.spans)

    @property
    def unit_bytes(self) -> int:
        """Bytes of 16 units."""
        return ROWS * UNITS[self.quant.unit_kind]

    @property
    def all_unit_bytes(self) -> int:
        """Bytes of a block's units and lows."""
        return self.quant.groups // self.quant.unit_groups * self.parts * self.unit_bytes

    @property
    def numbers(self) -> int:
        """Steps and low steps in a block."""
        return self.quant.groups * self.parts if self.quant.has_steps else 0

    @property
    def scale_bytes(self) -> int:
        """Bytes of scales for one block of the type."""
        return self.all_unit_bytes + self.numbers * ROWS * self.quant.step_bits // 8

    def nbytes(self, k: int) -> int:
        """Bytes of a panel with rows of k values, in whole vectors."""
        total = k // self.quant.block * (self.code_bytes + self.scale_bytes)
        return -(-total // VECTOR) * VECTOR

    def matrix_bytes(self, rows: int, k: int) -> int:
        """Bytes of a matrix [rows, k]; the last panel may have rows to spare."""
        return -(-rows // ROWS) * self.nbytes(k)
