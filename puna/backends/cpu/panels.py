"""Weights as panels: 16 rows interleaved, so that one 64-byte vector feeds a 4-way byte dot of 16 rows.

Of a panel, first the codes, then the scales, each a stream that a kernel reads from front to back:

    codes   for each 32 values of the row: its bit planes, the widest first. A plane of b bits is b vectors of 64 bytes;
            vector i holds, at bit b * m, the codes of step i + b * m, and a step is 4 values of 16 rows:
            byte 4 r + j is value j of row r. (4 bits: vector i has steps i and i + 4 in its low and high nibbles.)
    scales  for each block: f16 units of 16 rows, f16 lows of 16 rows where the type has them; then for each group of
            the block: its 16 steps and 16 low steps, a byte each, where the type has them.

A type of n code bits is split into planes of 8, 4, 2 and 1 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from puna.quants import QuantType, by_name
from puna.quants.lanes import NumpyBlock, as_array

__all__ = ["ROWS", "SPAN", "Panel"]

ROWS = 16  # rows of a panel
SPAN = 32  # values of a row whose planes lie together
VECTOR = 64
PLANES = (8, 4, 2, 1)


@dataclass(frozen=True)
class Panel:
    """The sizes of a quantised type's panels. `name` is the type's, so that a panel has a stable repr."""

    name: str

    @cached_property
    def quant(self) -> QuantType:
        return by_name(self.name)

    @cached_property
    def planes(self) -> tuple[int, ...]:
        """Bits of each plane, such as (4, 2) for six-bit codes."""
        left, planes = self.quant.bits, []
        for bits in PLANES:
            if left >= bits:
                planes.append(bits)
                left -= bits
        return tuple(planes)

    @cached_property
    def step_kind(self) -> str:
        """u8 or i8: how a group's step is stored."""
        step = self.quant.step(NumpyBlock(np.zeros((1, self.quant.bytes), np.uint8)), 0)
        return "i8" if step is not None and as_array(step).dtype == np.int8 else "u8"

    @property
    def spans(self) -> int:
        """Spans in a block of the type."""
        return self.quant.block // SPAN

    @property
    def span_bytes(self) -> int:
        """Bytes of codes for SPAN values of all rows."""
        return sum(self.planes) * VECTOR

    @property
    def unit_bytes(self) -> int:
        """Bytes of a block's units and lows."""
        return ROWS * 2 * (2 if self.quant.has_offset else 1)

    @property
    def group_bytes(self) -> int:
        """Bytes of a group's steps and low steps."""
        return ROWS * (2 if self.quant.has_offset else 1) if self.quant.has_steps else 0

    @property
    def block_bytes(self) -> int:
        """Bytes of scales for one block of the type."""
        return self.unit_bytes + self.quant.groups * self.group_bytes

    def code_bytes(self, k: int) -> int:
        """Bytes of the codes of a panel with rows of k values."""
        return k // SPAN * self.span_bytes

    def nbytes(self, k: int) -> int:
        """Bytes of a panel with rows of k values, in whole vectors."""
        total = self.code_bytes(k) + k // self.quant.block * self.block_bytes
        return -(-total // VECTOR) * VECTOR

    def matrix_bytes(self, rows: int, k: int) -> int:
        """Bytes of a matrix [rows, k]; the last panel may have rows to spare."""
        return -(-rows // ROWS) * self.nbytes(k)
