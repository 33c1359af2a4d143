"""GGUF's 13 value types: their codes, widths, and how the bytes of an array become Python and NumPy values.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct, calcsize
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FLOATS",
    "INTEGERS",
    "LEAST_BYTES",
    "MAX_DEPTH",
    "MAX_NAME",
    "NUMBERS",
    "Encoded",
    "Value",
    "ValueType",
    "frozen",
]

MAX_NAME = 65535  # bytes of a key
MAX_DEPTH = 4  # arrays in arrays; no model has any


class ValueType(IntEnum):
    """The code of a metadata value's type."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def label(self) -> str:
        return self.name.lower()


# The letter of each type of fixed width, the same in `struct` and NumPy.
NUMBERS: dict[ValueType, str] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
FLOATS = frozenset({ValueType.FLOAT32, ValueType.FLOAT64})
INTEGERS = frozenset(NUMBERS) - FLOATS - {ValueType.BOOL}
# What an element takes at least: a number its width, a string its length, an array its type and count.
LEAST_BYTES: dict[ValueType, int] = {
    **{kind: calcsize("<" + letter) for kind, letter in NUMBERS.items()},
    ValueType.STRING: 8,
    ValueType.ARRAY: 12,
}


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A value of an exact GGUF type.

    value: a bool, int, float or str; or a list, tuple or array of them, which is a GGUF array whose elements
    have the type. An array of arrays is `Value(ValueType.ARRAY, [Value(...), ...])`.
    """

    type: ValueType
    value: Any

    @property
    def is_array(self) -> bool:
        return isinstance(self.value, list | tuple | np.ndarray)

    def decode(self) -> Value:
        return self

    def plain(self) -> Any:
        """The value without its GGUF type, nor those of arrays in it."""
        return tuple(item.plain() for item in self.value) if self.type is ValueType.ARRAY else self.value


@dataclass(frozen=True, eq=False, slots=True)
class Encoded:
    """An array as it stands in a file, checked but not decoded, so that opening a large vocabulary is quick.

    type: of the elements. count: of elements. raw: the elements' bytes. order: `<` or `>`.
    """

    type: ValueType
    count: int
    raw: bytes
    order: str
    is_array = True

    def decode(self) -> Value:
        """The elements: a tuple of str or Value, or a read-only array in the machine's byte order."""
        content, _ = elements(self.type, self.count, self.raw, self.order, 0)
        return Value(self.type, content)


def elements(kind: ValueType, count: int, raw: bytes, order: str, start: int) -> tuple[Any, int]:
    """`count` elements from `start` on, and where they end. The bytes were checked when they were read."""
    if kind is ValueType.STRING:
        return strings(count, raw, order, start)
    if kind is ValueType.ARRAY:
        return arrays(count, raw, order, start)
    dtype = np.dtype(order + NUMBERS[kind])
    values = np.frombuffer(raw, dtype, count, start).astype(dtype.newbyteorder("="), copy=False)
    return frozen(values), start + count * dtype.itemsize


def strings(count: int, raw: bytes, order: str, position: int) -> tuple[tuple[str, ...], int]:
    length = Struct(order + "Q").unpack_from
    found: list[str] = []
    append = found.append
    for _ in range(count):
        start = position + 8
        position = start + length(raw, position)[0]
        append(raw[start:position].decode("utf-8", "surrogateescape"))
    return tuple(found), position


def arrays(count: int, raw: bytes, order: str, position: int) -> tuple[tuple[Value, ...], int]:
    head = Struct(order + "IQ")
    found = []
    for _ in range(count):
        code, length = head.unpack_from(raw, position)
        content, position = elements(ValueType(code), length, raw, order, position + head.size)
        found.append(Value(ValueType(code), content))
    return tuple(found), position


def frozen(values: NDArray[Any]) -> NDArray[Any]:
    """The same array, read-only from now on."""
    values.setflags(write=False)
    return values
