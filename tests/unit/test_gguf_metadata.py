"""The metadata's getters, and which GGUF type a Python or NumPy value gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gguf_files import NESTED, NESTED_PLAIN, same

from puna.errors import FormatError, ModelError
from puna.gguf import Metadata, Value, ValueType

METADATA = Metadata.of(
    {
        "string": "llama",
        "integer": Value(ValueType.UINT8, 7),
        "negative": -1,
        "float": 0.5,
        "bool": True,
        "strings": ["a", "b"],
        "integers": Value(ValueType.INT16, [1, -2]),
        "floats": [0.5, 2.0],
        "bools": [True, False],
        "huge": Value(ValueType.UINT64, [2**64 - 1]),
        "nested": NESTED,
    },
    where="m.gguf",
)
GETTERS = {
    "string": {"string": "llama"},
    "integer": {"integer": 7, "negative": -1},
    "number": {"integer": 7.0, "negative": -1.0, "float": 0.5},
    "boolean": {"bool": True},
    "strings": {"strings": ("a", "b")},
    "integers": {"integers": [1, -2], "huge": [2**64 - 1]},
    "numbers": {"integers": [1.0, -2.0], "floats": [0.5, 2.0], "huge": [2.0**64]},
    "booleans": {"bools": [True, False]},
}
FORMS = {"string": str, "integer": int, "number": float, "boolean": bool, "strings": tuple}


@pytest.mark.parametrize("getter", GETTERS)
@pytest.mark.parametrize("key", METADATA)
def test_getter_takes_its_types_and_no_others(getter: str, key: str) -> None:
    """A getter returns a value of its own types in its own form; others are errors that name all."""
    get = getattr(METADATA, getter)
    if key in GETTERS[getter]:
        assert same(get(key), GETTERS[getter][key])
        assert isinstance(get(key), FORMS.get(getter, np.ndarray))
    else:
        with pytest.raises(
            FormatError, match=rf"m\.gguf: metadata key '{key}' is .*, where an? .* is needed"
        ) as error:
            get(key, default=None)
        assert METADATA.element_type(key).label in str(error.value)


@pytest.mark.parametrize("getter", GETTERS)
def test_missing_key(getter: str) -> None:
    """A missing key is a ModelError naming file and key, unless a default is given, even None."""
    with pytest.raises(ModelError, match=r"^m\.gguf: missing metadata key 'llama\.block_count'$"):
        getattr(METADATA, getter)("llama.block_count")
    default = object()
    assert getattr(METADATA, getter)("llama.block_count", default=default) is default
    assert getattr(METADATA, getter)("llama.block_count", default=None) is None


@pytest.mark.parametrize(("key", "dtype"), [("integers", np.int64), ("huge", np.uint64)])
def test_integers_are_safe_to_calculate_with(key: str, dtype: type) -> None:
    """Integer arrays come as int64 whatever the file has, uint64 only where they must; numbers as float64."""
    assert METADATA.integers(key).dtype == dtype
    assert METADATA.numbers(key).dtype == np.float64
    assert not METADATA.integers(key).flags.writeable
    assert not METADATA.numbers(key).flags.writeable


def test_mapping() -> None:
    """Metadata is a read-only mapping."""
    assert isinstance(METADATA, Mapping)
    assert len(METADATA) == len(list(METADATA)) == 11
    assert ("string" in METADATA, "other" in METADATA) == (True, False)
    assert METADATA.get("other") is None
    assert METADATA["strings"] is METADATA["strings"]
    assert same(METADATA["nested"], NESTED_PLAIN)
    with pytest.raises(KeyError):
        METADATA["other"]
    with pytest.raises(TypeError):
        METADATA["other"] = 1  # type: ignore[index]


OBVIOUS: dict[str, tuple[Any, ValueType]] = {
    "bool": (True, ValueType.BOOL),
    "str": ("x", ValueType.STRING),
    "float": (1.5, ValueType.FLOAT32),
    "int": (1, ValueType.UINT32),
    "negative int": (-1, ValueType.INT32),
    "large int": (2**32, ValueType.UINT64),
    "large negative int": (-(2**40), ValueType.INT64),
    "ints": ([1, 2], ValueType.INT32),
    "large ints": ([1, 2**31], ValueType.UINT32),
    "ints of both signs": ([-1, 2**31], ValueType.INT64),
    "largest ints": ([2**64 - 1], ValueType.UINT64),
    "ints and floats": ((1, 1.5), ValueType.FLOAT32),
    "bools": ([True, False], ValueType.BOOL),
    "strings": (("a",), ValueType.STRING),
    "NumPy scalar": (np.float64(1.5), ValueType.FLOAT64),
    "NumPy bool": (np.bool_(True), ValueType.BOOL),
    "NumPy scalars": ([np.int8(1), np.int16(2)], ValueType.INT16),
    "array": (np.arange(3, dtype=np.uint16), ValueType.UINT16),
    "big-endian array": (np.arange(3, dtype=">i8"), ValueType.INT64),
    "lists": ([[1], ["a"]], ValueType.ARRAY),
}


@pytest.mark.parametrize(("value", "kind"), OBVIOUS.values(), ids=OBVIOUS)
def test_obvious_types(value: Any, kind: ValueType) -> None:
    """A Python or NumPy value gets the type that llama.cpp would look for, and keeps its value."""
    metadata = Metadata.of({"key": value})
    assert metadata.element_type("key") is kind
    assert same(metadata["key"], value)


UNFIT: dict[str, Any] = {
    "None": None,
    "bytes": b"x",
    "empty list": [],
    "mixed list": [1, "a"],
    "bools and ints": [True, 2],
    "list in a list of ints": [1, [2]],
    "matrix": np.zeros((2, 2), np.float32),
    "float16": np.float16(1),
    "complex": np.complex64(1),
    "int over 64 bits": 2**64,
    "ints over 64 bits": [-1, 2**63],
    "out of range": Value(ValueType.UINT8, 256),
    "out of range in a list": Value(ValueType.INT8, [0, -129]),
    "out of range in an array": Value(ValueType.INT8, np.array([128])),
    "negative for unsigned": Value(ValueType.UINT64, -1),
    "float for an int": Value(ValueType.INT32, 1.0),
    "bool for an int": Value(ValueType.INT32, True),
    "int for a bool": Value(ValueType.BOOL, 1),
    "number for a string": Value(ValueType.STRING, 1),
    "string for a number": Value(ValueType.FLOAT32, "1"),
    "too large for float32": Value(ValueType.FLOAT32, 1e300),
    "scalar array": Value(ValueType.ARRAY, 1),
    "array of scalars": Value(ValueType.ARRAY, [Value(ValueType.INT8, 1)]),
    "five deep": [[[[[1]]]]],
    "unknown type": Value(13, 1),  # type: ignore[arg-type]
    "lone surrogate": "\ud800",
}


@pytest.mark.parametrize("value", UNFIT.values(), ids=UNFIT)
def test_values_without_a_type(value: Any) -> None:
    """What GGUF cannot hold, or holds in more than one way, is refused."""
    with pytest.raises(ValueError, match=r"."):
        Metadata.of({"key": value})


def test_given_array_stays_writeable() -> None:
    """Metadata copy an array rather than freeze the caller's."""
    values = np.arange(3, dtype=np.int32)
    metadata = Metadata.of({"key": values})
    values[0] = 9
    assert metadata["key"].tolist() == [0, 1, 2]
