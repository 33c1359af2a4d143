"""Blocks of big-endian files.

No type lists which of its bytes form words: its own lines tell, run over an algebra that notes what is read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from puna.quants.base import QuantType
from puna.quants.grids import Grid
from puna.quants.lanes import STORED, Block, Kind, Lanes, Verb
from puna.quants.pieces import as_blocks, split

__all__ = ["byteswapped", "words"]


class RecordingLanes(Lanes):
    """Lanes without data: every verb gives them back."""

    def apply(self, verb: Verb, other: Lanes | float) -> Lanes:
        return self

    def __neg__(self) -> Lanes:
        return self

    def __getitem__(self, lanes: slice) -> Lanes:
        return self

    def bits(self) -> Lanes:
        return self

    def lookup(self, table: tuple[int, ...]) -> Lanes:
        return self

    def gather(self, grid: Grid) -> Lanes:
        return self

    def u8(self) -> Lanes:
        return self

    def u16(self) -> Lanes:
        return self

    def u32(self) -> Lanes:
        return self

    def f32(self) -> Lanes:
        return self

    def as_i8(self) -> Lanes:
        return self

    def as_f16(self) -> Lanes:
        return self

    def as_f32(self) -> Lanes:
        return self


class RecordingBlock(Block):
    """A block without data that notes (offset, bytes) of each word read."""

    def __init__(self) -> None:
        self.words: set[tuple[int, int]] = set()

    def read(self, kind: Kind, at: int, n: int) -> Lanes:
        size = STORED[kind].itemsize
        self.words |= {(at + i * size, size) for i in range(n)}
        return RecordingLanes()

    def cat(self, *parts: Lanes) -> Lanes:
        return parts[0]


def words(quant: QuantType) -> list[tuple[int, int]]:
    """(offset, bytes) of each word in a block of `quant`, in order."""
    block = RecordingBlock()
    quant.sums(block)
    for g in range(quant.groups):
        quant.values(block, g)
    return sorted(block.words)


def byteswapped(quant: QuantType, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of blocks in the other byte order: big-endian in, little-endian out, or the reverse.

    raw: uint8 [..., row bytes]; the result is a new array of that shape. Raises FormatError where a row is
    not whole blocks, RequestError where raw is not of bytes.
    """
    blocks = as_blocks(quant, raw)
    result: NDArray[np.uint8] = np.array(raw, order="C")
    swapped = split(result, quant.bytes)
    for at, size in words(quant):
        if size > 1:
            for i in range(size):
                swapped[..., at + i] = blocks[..., at + size - 1 - i]
    return result
