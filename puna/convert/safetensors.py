"""safetensors files: the header read and checked, the tensors mapped.

    u64 length of the header | JSON: name -> {dtype, shape, data_offsets: [start, end]} | data

Numbers are little-endian; offsets count from the start of the data, which the tensors fill without holes.
Format: https://github.com/huggingface/safetensors#format

The `safetensors` package is not used: under NumPy it has no bfloat16, and what is needed here is bytes, not copies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.errors import FormatError
from puna.gguf.source import Mapped, open_file

__all__ = ["DTYPES", "SafeTensors", "StoredTensor"]

MAX_HEADER = 100_000_000  # bytes, the limit of the format's own reader
MAX_DIMENSIONS = 8
REFETCH = "save or download the file again"
# Name -> NumPy's type of the same bytes: unsigned integers stand for what NumPy has no numbers of.
DTYPES: Mapping[str, str] = {
    "BOOL": "u1",
    "U8": "u1",
    "I8": "i1",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E8M0": "u1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": "<u2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies. offset: of its first byte in the file. shape: slowest dimension first."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafeTensors:
    """An open file: `tensors` by name, and the values of each by `data`. Opening reads the header alone."""

    def __init__(self, path: Path, tensors: Mapping[str, StoredTensor], source: Mapped) -> None:
        self.path, self.tensors = path, tensors
        self._source = source

    @classmethod
    def open(cls, path: Path) -> SafeTensors:
        """Raises FormatError where the file cannot be read, or is not what the format demands."""
        file, size = open_file(path)
        with file:
            tensors = read_tensors(file, size, str(path))
            return cls(path, tensors, Mapped(file, str(path)))

    def data(self, name: str) -> NDArray[Any]:
        """A read-only view of the mapped file, of the tensor's shape and the type that DTYPES names."""
        tensor = self.tensors[name]
        raw = self._source.read(tensor.offset, tensor.nbytes)
        return raw.view(DTYPES[tensor.dtype]).reshape(tensor.shape)

    def drop(self, name: str) -> None:
        """The tensor will not be read again soon: its pages are given back."""
        tensor = self.tensors[name]
        self._source.drop(tensor.offset, tensor.nbytes)

    def close(self) -> None:
        """Let go of the file. Views that are alive keep it mapped."""
        self._source.close()


def read_tensors(file: BufferedReader, size: int, where: str) -> dict[str, StoredTensor]:
    header, start = read_header(file, size, where)
    header.pop("__metadata__", None)
    tensors = {name: read_tensor(name, entry, start, size, where) for name, entry in header.items()}
    end = start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            what = "overlaps the one before it" if tensor.offset < end else "leaves a hole before it"
            raise FormatError(f"the data of tensor {tensor.name!r} {what}", where=where, fix=REFETCH)
        end += tensor.nbytes
    if end != size:
        raise FormatError(f"the tensors end at byte {end}, the file at byte {size}", where=where, fix=REFETCH)
    return tensors


def read_header(file: BufferedReader, size: int, where: str) -> tuple[dict[str, Any], int]:
    """The JSON of the header, and where the data start."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > size - 8:
        if start.startswith(b"version"):
            raise FormatError(
                "this is a Git LFS pointer, not the tensors",
                where=where,
                fix="fetch them with `git lfs pull`",
            )
        what = f"the header is said to take {length} bytes, and the file has {size}"
        raise FormatError(what, where=where, fix=REFETCH)
    if length > MAX_HEADER:
        what = f"a header of {length} bytes is over the limit of {MAX_HEADER}"
        raise FormatError(what, where=where, fix=REFETCH)
    try:
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the header is no sound JSON: {error}", where=where, fix=REFETCH) from None
    if not isinstance(header, dict):
        raise FormatError("the header is no JSON object", where=where, fix=REFETCH)
    return header, 8 + length


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no name stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def read_tensor(name: str, entry: Any, start: int, size: int, where: str) -> StoredTensor:
    """An entry of the header. `start` is where the data begin in the file of `size` bytes."""

    def fault(what: str) -> FormatError:
        return FormatError(f"tensor {name!r} {what}", where=where, fix=REFETCH)

    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise fault("has an entry without dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FormatError(
            f"tensor {name!r} has the type {dtype!r}", where=where, fix=f"use one of {', '.join(DTYPES)}"
        )
    if not is_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise fault(f"has the shape {str(shape)[:80]}")
    if not is_counts(offsets) or len(offsets) != 2:
        raise fault(f"has the offsets {str(offsets)[:80]}")
    first, last = offsets
    nbytes = prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if last - first != nbytes:
        raise fault(
            f"of shape {shape} and type {dtype} takes {nbytes} bytes, not the {last - first} it is given"
        )
    if start + last > size:
        raise fault(f"would end at byte {start + last}, but the file ends at byte {size}")
    return StoredTensor(name, dtype, tuple(shape), start + first, nbytes)


def is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)
