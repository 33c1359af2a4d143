"""Importance matrices in llama.cpp's GGUF form: what llama-imatrix writes and llama-quantize reads.

For each weight two F32 tensors: `<weight>.in_sum2`, the sum of the squares of each column of what the weight was
multiplied with, [k] or [experts, k]; and `<weight>.counts`, the rows that were summed, [1] or [experts, 1].
Metadata: general.type "imatrix", imatrix.datasets, imatrix.chunk_count and imatrix.chunk_size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from puna.errors import FormatError
from puna.gguf.cursor import quoted
from puna.gguf.reader import GGUFFile
from puna.gguf.values import Value, ValueType
from puna.gguf.writer import write
from puna.quants import by_name

__all__ = ["Imatrix", "Importance", "read_imatrix", "write_imatrix"]

SUMS, COUNTS = ".in_sum2", ".counts"


class Importance(NamedTuple):
    """What a weight was multiplied with. sums: float32 [k] or [experts, k].  counts: float32 [1] or [experts]."""

    sums: NDArray[np.float32]
    counts: NDArray[np.float32]


class Imatrix(dict[str, Importance]):
    """Weight -> importance. datasets: files of text it comes from.  chunks, chunk_size: windows, tokens in each."""

    def __init__(
        self,
        entries: Mapping[str, Importance],
        datasets: Iterable[str] = (),
        chunks: int = 0,
        chunk_size: int = 0,
    ) -> None:
        super().__init__(entries)
        self.datasets, self.chunks, self.chunk_size = tuple(datasets), chunks, chunk_size


def write_imatrix(path: str | Path, imatrix: Imatrix) -> None:
    """Write a file, all of it or nothing. Raises RequestError where that is impossible."""
    f32, tensors = by_name("F32"), []
    for name, (sums, counts) in sorted(imatrix.items()):
        for suffix, values in ((SUMS, sums), (COUNTS, counts.reshape(-1, 1) if sums.ndim > 1 else counts)):
            raw = np.ascontiguousarray(values, "<f4").view(np.uint8)
            tensors.append((name + suffix, f32, values.shape, raw))
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": Value(ValueType.STRING, list(imatrix.datasets)),
        "imatrix.chunk_count": Value(ValueType.UINT32, imatrix.chunks),
        "imatrix.chunk_size": Value(ValueType.UINT32, imatrix.chunk_size),
    }
    write(path, metadata, tensors)


def read_imatrix(path: str | Path) -> Imatrix:
    """Read a file that llama-imatrix or `write_imatrix` wrote; tensors of other kinds are passed over.

    Raises FormatError where it is none, or its numbers cannot be sums and counts.
    """
    with GGUFFile.open(path) as file:
        meta, where = file.metadata, str(path)
        if meta.string("general.type", default="") != "imatrix":
            raise FormatError("this is no importance matrix", where=where, fix="give what puna imatrix wrote")
        names = [name.removesuffix(SUMS) for name in file.tensors if name.endswith(SUMS)]
        if not names:
            raise FormatError("the file has no importance of any tensor", where=where, fix="make it again")
        return Imatrix(
            {name: importance(file, name, where) for name in names},
            meta.strings("imatrix.datasets", default=()),
            meta.integer("imatrix.chunk_count", default=0),
            meta.integer("imatrix.chunk_size", default=0),
        )


def importance(file: GGUFFile, name: str, where: str) -> Importance:
    """One weight's. Raises FormatError."""
    sums, counts = (values(file, name + suffix, where) for suffix in (SUMS, COUNTS))
    counts = counts.reshape(-1)
    sums = sums[0] if sums.shape[:-1] == (1,) else sums
    if len(counts) != (1 if sums.ndim == 1 else len(sums)) or sums.ndim > 2:
        what = f"sums of shape {sums.shape} do not go with {len(counts)} counts"
        raise FormatError(f"tensor {quoted(name)}: {what}", where=where, fix="make the file again")
    return Importance(sums, counts)


def values(file: GGUFFile, name: str, where: str) -> NDArray[np.float32]:
    """A tensor of numbers that are sums of squares, or counts."""
    info = file.tensors.get(name)
    found = None if info is None else file.data(name).view("<f4") if info.quant.name == "F32" else None
    if info is None or found is None:
        what = "is missing" if info is None else f"is {info.quant.name}, where F32 is needed"
        raise FormatError(f"tensor {quoted(name)} {what}", where=where, fix="make the file again")
    if not (np.isfinite(found) & (found >= 0)).all():
        what = "has numbers below 0, or that are none"
        raise FormatError(f"tensor {quoted(name)} {what}", where=where, fix="make the file again")
    return found.astype(np.float32).reshape(info.shape)
