"""Python and NumPy values -> values of an exact GGUF type, checked, so that writing them cannot fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf.values import FLOATS, INTEGERS, MAX_DEPTH, NUMBERS, Value, ValueType, frozen

__all__ = ["exact"]

# Which type a Python int gets: the first that holds it. llama.cpp reads counts as uint32 and lists as int32.
SCALAR_INTEGERS = (ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64)
LIST_INTEGERS = (ValueType.INT32, ValueType.UINT32, ValueType.INT64, ValueType.UINT64)


def exact(value: Any) -> Value:
    """The Value that `value` stands for. Raises ValueError where its type is not obvious or does not hold it.

    A Python int is uint32, int32, uint64 or int64, the first that holds it; in a list int32 comes first, and
    one type must hold all. A Python float is float32. NumPy values keep their type.
    """
    value = value if isinstance(value, Value) else Value(inferred_type(value), value)
    kind = ValueType(value.type)
    return Value(kind, array(kind, value.value) if value.is_array else scalar(kind, value.value))


def inferred_type(value: Any) -> ValueType:
    """The GGUF type of a value, or of its elements where it is a list or an array."""
    if isinstance(value, np.ndarray | np.generic):
        return numpy_type(value.dtype)
    if not isinstance(value, list | tuple):
        return common_type([value], SCALAR_INTEGERS)
    if not value:
        raise ValueError("an empty list has no obvious type: give Value(ValueType.STRING, []) or the like")
    if all(isinstance(item, list | tuple | np.ndarray | Value) for item in value):
        return ValueType.ARRAY
    if all(isinstance(item, np.generic) for item in value):
        return numpy_type(np.result_type(*value))
    return common_type(value, LIST_INTEGERS)


def numpy_type(dtype: np.dtype[Any]) -> ValueType:
    for kind, letter in NUMBERS.items():
        if np.dtype(letter) == dtype.newbyteorder("="):
            return kind
    raise ValueError(f"NumPy's {dtype} has no GGUF type")


def common_type(values: Sequence[Any], integers: tuple[ValueType, ...]) -> ValueType:
    """The one type of Python scalars."""
    classes = {type(value) for value in values}
    if classes == {int}:
        return next((kind for kind in integers if fits(kind, min(values), max(values))), integers[-1])
    for names, kind in CLASSES.items():
        if classes <= names:
            return kind
    raise ValueError(f"{' with '.join(sorted(c.__name__ for c in classes))} has no GGUF type")


CLASSES = {
    frozenset({bool}): ValueType.BOOL,
    frozenset({str}): ValueType.STRING,
    frozenset({int, float}): ValueType.FLOAT32,
}


def fits(kind: ValueType, low: int, high: int) -> bool:
    limits = np.iinfo(NUMBERS[kind])
    return bool(limits.min <= low and high <= limits.max)


def scalar(kind: ValueType, value: Any) -> Any:
    if kind is ValueType.STRING:
        return text(value)
    if kind is ValueType.ARRAY:
        raise ValueError(f"{value!r} is no list")
    return numbers(kind, [value]).item()


def array(kind: ValueType, items: Any) -> Any:
    """Content of an array: a tuple of str or of Value, or a read-only NumPy array."""
    return ARRAYS[kind](items) if kind in ARRAYS else numbers(kind, items)


def strings(items: Sequence[Any]) -> tuple[str, ...]:
    return tuple(text(item) for item in items)


def arrays(items: Sequence[Any]) -> tuple[Value, ...]:
    found = tuple(exact(item) for item in items)
    if not all(item.is_array for item in found):
        raise ValueError("an array of arrays holds something else")
    if max((depth(item) for item in found), default=0) >= MAX_DEPTH:
        raise ValueError(f"arrays nest over {MAX_DEPTH} deep")
    return found


ARRAYS: dict[ValueType, Callable[[Any], Any]] = {ValueType.STRING: strings, ValueType.ARRAY: arrays}


def depth(value: Value) -> int:
    return 1 + (max(map(depth, value.value), default=0) if value.type is ValueType.ARRAY else 0)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no string")
    value.encode("utf-8", "surrogateescape")  # UnicodeEncodeError is a ValueError
    return value


def numbers(kind: ValueType, items: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    """Items as a read-only array of a type that holds every one."""
    # NumPy makes floats of ints from negative to 2^63 and above: object keeps them exact.
    listed_ints = kind in INTEGERS and not isinstance(items, np.ndarray)
    given = np.array(items, object) if listed_ints else np.asarray(items)
    if given.ndim != 1:
        raise ValueError(f"an array of {given.ndim} dimensions is no GGUF array: give a list of arrays")
    if not given.size:
        return frozen(np.empty(0, NUMBERS[kind]))
    if not (all(map(is_integer, given)) if listed_ints else given.dtype.kind in ACCEPTED[kind]):
        raise ValueError(f"a value is no {kind.label}")
    if kind in INTEGERS:
        for number in (int(given.min()), int(given.max())):
            if not fits(kind, number, number):
                raise ValueError(f"{number} does not fit {kind.label}")
    with np.errstate(over="ignore"):
        values = given.astype(NUMBERS[kind])
    if kind in FLOATS and not np.array_equal(np.isinf(values), np.isinf(given)):
        raise ValueError(f"a value is too large for {kind.label}")
    return frozen(values)


# The kinds of NumPy array that a type takes.
ACCEPTED = {kind: "iu" if kind in INTEGERS else "iuf" if kind in FLOATS else "b" for kind in NUMBERS}


def is_integer(item: Any) -> bool:
    return isinstance(item, int | np.integer) and not isinstance(item, bool)
