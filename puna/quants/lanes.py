"""The lane algebra that quantisation types are written in, and its NumPy implementation.

A type's methods are given a `Block` and take `Lanes` values out of it. They run once for each group, while a
kernel is being written: every offset, length, shift and group number is a Python int, and only the lanes are
data. So the same lines give a dequantiser over NumPy arrays here, machine code in a backend that implements
the two classes over LLVM vectors, and the places of a block's words in `puna.quants.byteorder`.

    x.u8(at, n) i8 u16 u32 f32   n little-endian words from byte `at` of the block: n lanes of that kind
    x.f16(at, n)                 n half floats, widened: f32 lanes
    x.read(kind, at, n)          any of these; for i16, i32, i64 and f64 the nearest f32 lanes
    x.cat(a, b, ...)             the lanes of a, then those of b, ...; all of one kind
    a & b  a | b  a ^ b          integer lanes of one kind
    a << k  a >> k               unsigned lanes by a Python int below the kind's width, filling with 0
    a + b  a - b  a * b          integer lanes wrap around at the kind's width; f32 lanes round once
    -a                           f32 lanes, the sign bit flipped
    a[i:j] a[i:j:k]              lanes i to j - 1, each or every k-th
    a.bits()                     each integer lane's bits, lowest first, as u8 lanes of 0 or 1
    a.lookup(table)              u8 lanes: the table's byte (of at most 16) at each u8 lane's place
    a.gather(grid)               u8 lanes: the grid's `width` bytes at each u16 lane's entry, one after another
    a.u8() a.u16() a.u32()       unsigned integer lanes, widened, or without their upper bits
    a.f32()                      integer lanes as the f32 of the same value
    a.as_i8()                    u8 lanes as the i8 with the same bits
    a.as_f16()                   u16 lanes as the half floats with the same bits, widened: f32 lanes
    a.as_f32()                   u32 lanes as the f32 with the same bits

The right side of an operator has the left side's kind, or is a Python int that stands for that number in the
kind. A value of one lane meets a longer one as if repeated. Float operations are IEEE binary32, to nearest
even, in the order written: an implementation must not contract `a * b + c`, or backends would differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from puna.quants.grids import Grid

__all__ = ["STORED", "Block", "Grid", "Kind", "Lanes", "NumpyBlock", "NumpyLanes", "Verb", "as_array"]

Kind = Literal["u8", "i8", "u16", "i16", "u32", "i32", "i64", "f16", "f32", "f64"]
Verb = Literal["and", "or", "xor", "shl", "shr", "add", "sub", "mul"]

# A word as it lies in a file. The order is explicit, so it holds on a big-endian host too.
STORED: dict[Kind, np.dtype[Any]] = {
    "u8": np.dtype("u1"),
    "i8": np.dtype("i1"),
    "u16": np.dtype("<u2"),
    "i16": np.dtype("<i2"),
    "u32": np.dtype("<u4"),
    "i32": np.dtype("<i4"),
    "i64": np.dtype("<i8"),
    "f16": np.dtype("<f2"),
    "f32": np.dtype("<f4"),
    "f64": np.dtype("<f8"),
}
LANES = frozenset(
    {"u8", "i8", "u16", "u32", "f32"}
)  # kinds that lanes have; others become f32 as they are read


class Lanes(ABC):
    """A vector of lanes, all of one kind: u8, i8, u16, u32 or f32."""

    __slots__ = ()

    @abstractmethod
    def apply(self, verb: Verb, other: Lanes | float) -> Lanes:
        """A binary verb, lane by lane: what all operators below come to."""

    @abstractmethod
    def __neg__(self) -> Lanes: ...

    @abstractmethod
    def __getitem__(self, lanes: slice) -> Lanes: ...

    @abstractmethod
    def bits(self) -> Lanes: ...

    @abstractmethod
    def lookup(self, table: tuple[int, ...]) -> Lanes: ...

    @abstractmethod
    def gather(self, grid: Grid) -> Lanes: ...

    @abstractmethod
    def u8(self) -> Lanes: ...

    @abstractmethod
    def u16(self) -> Lanes: ...

    @abstractmethod
    def u32(self) -> Lanes: ...

    @abstractmethod
    def f32(self) -> Lanes: ...

    @abstractmethod
    def as_i8(self) -> Lanes: ...

    @abstractmethod
    def as_f16(self) -> Lanes: ...

    @abstractmethod
    def as_f32(self) -> Lanes: ...

    def __and__(self, other: Lanes | int) -> Lanes:
        return self.apply("and", other)

    def __or__(self, other: Lanes | int) -> Lanes:
        return self.apply("or", other)

    def __xor__(self, other: Lanes | int) -> Lanes:
        return self.apply("xor", other)

    def __lshift__(self, other: int) -> Lanes:
        return self.apply("shl", other)

    def __rshift__(self, other: int) -> Lanes:
        return self.apply("shr", other)

    def __add__(self, other: Lanes | int) -> Lanes:
        return self.apply("add", other)

    def __sub__(self, other: Lanes | int) -> Lanes:
        return self.apply("sub", other)

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self.apply("mul", other)


class Block(ABC):
    """The bytes of one block, or of many side by side: that is the implementation's choice."""

    __slots__ = ()

    @abstractmethod
    def read(self, kind: Kind, at: int, n: int) -> Lanes:
        """`n` words of `kind`, one after the other from byte `at`; f32 lanes where no lanes have that kind."""

    @abstractmethod
    def cat(self, *parts: Lanes) -> Lanes: ...

    def u8(self, at: int, n: int = 1) -> Lanes:
        return self.read("u8", at, n)

    def i8(self, at: int, n: int = 1) -> Lanes:
        return self.read("i8", at, n)

    def u16(self, at: int, n: int = 1) -> Lanes:
        return self.read("u16", at, n)

    def u32(self, at: int, n: int = 1) -> Lanes:
        return self.read("u32", at, n)

    def f16(self, at: int, n: int = 1) -> Lanes:
        return self.read("f16", at, n)

    def f32(self, at: int, n: int = 1) -> Lanes:
        return self.read("f32", at, n)


UFUNCS: dict[Verb, np.ufunc] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
}


class NumpyLanes(Lanes):
    """Lanes of many blocks at once: an array [..., blocks, lanes] in the host's byte order."""

    __slots__ = ("array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def apply(self, verb: Verb, other: Lanes | float) -> Lanes:
        # NumPy would widen mixed kinds silently; other implementations cannot.
        operand = self.array.dtype.type(other) if isinstance(other, int | float) else as_array(other)
        if operand.dtype != self.array.dtype:
            raise TypeError(f"{verb} of {self.array.dtype} and {operand.dtype} lanes")
        return NumpyLanes(UFUNCS[verb](self.array, operand))

    def __neg__(self) -> Lanes:
        return NumpyLanes(-self.array)

    def __getitem__(self, lanes: slice) -> Lanes:
        return NumpyLanes(self.array[..., lanes])

    def bits(self) -> Lanes:
        little = np.ascontiguousarray(self.array, self.array.dtype.newbyteorder("<"))
        return NumpyLanes(np.unpackbits(little.view(np.uint8), axis=-1, bitorder="little"))

    def lookup(self, table: tuple[int, ...]) -> Lanes:
        return NumpyLanes(np.array(table, np.uint8).take(self.array))

    def gather(self, grid: Grid) -> Lanes:
        entries = np.frombuffer(grid.data, f"u{grid.width}")  # one integer an entry, its bytes as they lie
        return NumpyLanes(entries.take(self.array).view(np.uint8))

    def u8(self) -> Lanes:
        return NumpyLanes(self.array.astype(np.uint8))

    def u16(self) -> Lanes:
        return NumpyLanes(self.array.astype(np.uint16))

    def u32(self) -> Lanes:
        return NumpyLanes(self.array.astype(np.uint32))

    def f32(self) -> Lanes:
        return NumpyLanes(self.array.astype(np.float32))

    def as_i8(self) -> Lanes:
        return NumpyLanes(self.array.view(np.int8))

    def as_f16(self) -> Lanes:
        return NumpyLanes(self.array.view(np.float16).astype(np.float32))

    def as_f32(self) -> Lanes:
        return NumpyLanes(self.array.view(np.float32))


class NumpyBlock(Block):
    """Many blocks: a uint8 array [..., blocks, bytes], read in place."""

    __slots__ = ("raw",)

    def __init__(self, raw: NDArray[np.uint8]) -> None:
        # Words are views, which need a block's bytes side by side.
        self.raw = raw if raw.strides[-1] == 1 else np.ascontiguousarray(raw)

    def read(self, kind: Kind, at: int, n: int) -> Lanes:
        stored = STORED[kind]
        words = self.raw[..., at : at + n * stored.itemsize].view(stored)
        native = stored.newbyteorder("=") if kind in LANES else np.float32
        return NumpyLanes(words.astype(native, copy=False))

    def cat(self, *parts: Lanes) -> Lanes:
        return NumpyLanes(np.concatenate([as_array(part) for part in parts], axis=-1))


def as_array(lanes: Lanes) -> NDArray[Any]:
    """The array [..., blocks, lanes] behind NumPy lanes. Raises TypeError for another implementation's."""
    if not isinstance(lanes, NumpyLanes):
        raise TypeError(f"{type(lanes).__name__} where NumpyLanes are needed")
    return lanes.array
