"""Small GGUF files for tests: a sample that the writer writes, and files put together byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from puna.gguf import GGUFFile, Value, ValueType, write
from puna.quants import by_id

F32, F16, Q4_0, Q8_0 = (by_id(code) for code in (0, 1, 2, 8))
EXTREMES = {
    ValueType.UINT8: (0, 2**8 - 1),
    ValueType.INT8: (-(2**7), 2**7 - 1),
    ValueType.UINT16: (0, 2**16 - 1),
    ValueType.INT16: (-(2**15), 2**15 - 1),
    ValueType.UINT32: (0, 2**32 - 1),
    ValueType.INT32: (-(2**31), 2**31 - 1),
    ValueType.FLOAT32: (-1.5, 0.25),
    ValueType.BOOL: (False, True),
    ValueType.STRING: ("", "Ġthe\n → 'é\udcff"),
    ValueType.UINT64: (0, 2**64 - 1),
    ValueType.INT64: (-(2**63), 2**63 - 1),
    ValueType.FLOAT64: (-1e300, 0.1),
}
NESTED = Value(
    ValueType.ARRAY,
    [Value(ValueType.STRING, ["a", ""]), Value(ValueType.ARRAY, [Value(ValueType.INT16, [-3, 4])])],
)
NESTED_PLAIN = (("a", ""), ((-3, 4),))


def sample_metadata() -> dict[str, Any]:
    """Every type, each alone and in an array, empty arrays and nested ones."""
    keys: dict[str, Any] = {"general.architecture": "llama", "nested": NESTED}
    for kind, values in EXTREMES.items():
        keys |= {f"{kind.label}.{i}": Value(kind, value) for i, value in enumerate(values)}
        keys[f"{kind.label}.array"] = Value(kind, list(values))
        keys[f"{kind.label}.empty"] = Value(kind, [])
    return keys


def random_bytes(shape: Sequence[int], seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def sample_tensors() -> list[tuple[str, Any, tuple[int, ...], np.ndarray[Any, np.dtype[np.uint8]]]]:
    """Name, type, shape, bytes. The last fills its alignment, so no padding ends the file."""
    shapes = {
        "norm": (F32, (7,)),
        "a.weight": (Q4_0, (3, 64)),
        "b.weight": (F16, (2, 3, 5)),
        "c": (F32, (4, 4, 2, 4)),
    }
    return [
        (name, quant, shape, random_bytes((*shape[:-1], quant.row_bytes(shape[-1])), seed))
        for seed, (name, (quant, shape)) in enumerate(shapes.items())
    ]


def write_sample(path: Path, **options: Any) -> Path:
    write(path, sample_metadata(), sample_tensors(), **options)
    return path


def read_all(path: Path, *, mmap: bool = True) -> tuple[dict[str, Any], dict[str, bytes]]:
    """All metadata and all tensor bytes of a file."""
    with GGUFFile.open(path, mmap=mmap) as file:
        return dict(file.metadata), {name: file.data(name).tobytes() for name in file.tensors}


def same(left: Any, right: Any) -> bool:
    """Equality of metadata values, whatever holds their elements."""
    if isinstance(left, np.ndarray | list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)


def text(value: str | bytes, order: str = "<") -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(order + "Q", len(raw)) + raw


def key(name: str | bytes, code: int, payload: bytes) -> bytes:
    """A metadata key and its value."""
    return text(name) + struct.pack("<I", code) + payload


def array(code: int, count: int, payload: bytes = b"") -> bytes:
    """What follows the type of an array."""
    return struct.pack("<IQ", code, count) + payload


def row(
    name: str | bytes = "t",
    dims: Sequence[int] = (8,),
    code: int = 0,
    offset: int = 0,
    count: int | None = None,
) -> bytes:
    """A row of the tensor table; dims as in the file, fastest first."""
    dimensions = struct.pack(f"<I{len(dims)}Q", len(dims) if count is None else count, *dims)
    return text(name) + dimensions + struct.pack("<IQ", code, offset)


def gguf(
    keys: Sequence[bytes] = (),
    rows: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    key_count: int | None = None,
    row_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file of these parts, with true counts unless others are given."""
    rows_there = len(rows) if row_count is None else row_count
    keys_there = len(keys) if key_count is None else key_count
    head = b"GGUF" + struct.pack("<IQQ", version, rows_there, keys_there) + b"".join(keys) + b"".join(rows)
    return head + bytes(-len(head) % alignment) + data if rows else head
