"""A model's metadata: a read-only mapping, and getters that say what they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from puna.errors import FormatError, ModelError
from puna.gguf.cursor import quoted
from puna.gguf.exact import exact
from puna.gguf.values import FLOATS, INTEGERS, Encoded, Value, ValueType, frozen

__all__ = ["Metadata"]

T = TypeVar("T")
D = TypeVar("D")


class Required(Enum):
    """The default of a getter that has none."""

    REQUIRED = 0


REQUIRED = Required.REQUIRED


@dataclass(frozen=True)
class Need(Generic[T]):
    """What a getter takes: in words, the GGUF types, one value or an array; and the form it returns."""

    words: str
    types: frozenset[ValueType]
    is_array: bool
    form: Callable[[Any], T]


def signed(values: NDArray[Any]) -> NDArray[Any]:
    """int64, for safe arithmetic, unless a uint64 does not fit it."""
    fits = values.dtype != np.uint64 or not values.size or values.max() < 1 << 63
    return frozen(values.astype(np.int64)) if fits else values


STRING = Need("a string", frozenset({ValueType.STRING}), False, str)
INTEGER = Need("an integer", INTEGERS, False, int)
NUMBER = Need("a number", INTEGERS | FLOATS, False, float)
BOOLEAN = Need("a bool", frozenset({ValueType.BOOL}), False, bool)
STRING_ARRAY: Need[tuple[str, ...]] = Need("an array of strings", STRING.types, True, tuple)
INTEGER_ARRAY = Need("an array of integers", INTEGER.types, True, signed)
NUMBER_ARRAY = Need("an array of numbers", NUMBER.types, True, lambda x: frozen(x.astype(np.float64)))
BOOLEAN_ARRAY: Need[NDArray[Any]] = Need("an array of bools", BOOLEAN.types, True, lambda values: values)


class Metadata(Mapping[str, Any]):
    """Key to value: bool, int, float, str, a tuple of str, a read-only NumPy array, or a tuple of these.

    Text that is not UTF-8 keeps its bytes as surrogate escapes, so that it can be written back. `[key]`
    raises KeyError; the getters raise ModelError where a key is missing, unless a default is given, and
    FormatError where its type is another.
    """

    def __init__(self, entries: Mapping[str, Value | Encoded], where: str) -> None:
        self._entries = dict(entries)
        self.where = where

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "metadata") -> Metadata:
        """From Python and NumPy values, as `write` takes them. Raises ValueError where one has no type."""
        return cls({key: exact(value) for key, value in values.items()}, where)

    def __getitem__(self, key: str) -> Any:
        return self.typed(key).plain()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def type_of(self, key: str) -> ValueType:
        """The GGUF type of a value, ARRAY for any array. Raises KeyError."""
        entry = self._entries[key]
        return ValueType.ARRAY if entry.is_array else entry.type

    def element_type(self, key: str) -> ValueType:
        """The GGUF type of an array's elements, or of a single value. Raises KeyError."""
        return self._entries[key].type

    def count(self, key: str) -> int:
        """How many elements an array has, which need not be decoded for that; 0 for none, and for no array."""
        entry = self._entries.get(key)
        if entry is None or not entry.is_array:
            return 0
        return entry.count if isinstance(entry, Encoded) else len(entry.value)

    def typed(self, key: str) -> Value:
        """The value with its exact GGUF type, as `write` takes it. Raises KeyError."""
        value = self._entries[key] = self._entries[key].decode()
        return value

    def string(self, key: str, *, default: D | Required = REQUIRED) -> str | D:
        return self._get(key, STRING, default)

    def integer(self, key: str, *, default: D | Required = REQUIRED) -> int | D:
        return self._get(key, INTEGER, default)

    def number(self, key: str, *, default: D | Required = REQUIRED) -> float | D:
        return self._get(key, NUMBER, default)

    def boolean(self, key: str, *, default: D | Required = REQUIRED) -> bool | D:
        return self._get(key, BOOLEAN, default)

    def strings(self, key: str, *, default: D | Required = REQUIRED) -> tuple[str, ...] | D:
        return self._get(key, STRING_ARRAY, default)

    def integers(self, key: str, *, default: D | Required = REQUIRED) -> NDArray[Any] | D:
        """Read-only int64 [n], or uint64 where an element needs it."""
        return self._get(key, INTEGER_ARRAY, default)

    def numbers(self, key: str, *, default: D | Required = REQUIRED) -> NDArray[Any] | D:
        """Read-only float64 [n]."""
        return self._get(key, NUMBER_ARRAY, default)

    def booleans(self, key: str, *, default: D | Required = REQUIRED) -> NDArray[Any] | D:
        """Read-only bool [n]."""
        return self._get(key, BOOLEAN_ARRAY, default)

    def _get(self, key: str, need: Need[T], default: D | Required) -> T | D:
        entry = self._entries.get(key)
        if entry is None:
            if isinstance(default, Required):
                raise ModelError(f"missing metadata key {quoted(key)}", where=self.where)
            return default
        if entry.is_array != need.is_array or entry.type not in need.types:
            held = f"an array of {entry.type.label}" if entry.is_array else entry.type.label
            raise FormatError(
                f"metadata key {quoted(key)} is {held}, where {need.words} is needed", where=self.where
            )
        return need.form(self[key])
