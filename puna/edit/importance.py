"""Importance of a model's columns, for quantisers: from an importance matrix in either of llama.cpp's forms.

The mean square of what came in to each column weighs the errors of the column's weights. The first form, which
llama-imatrix wrote until 2025, is counts and names without a magic:

    i32 entries | each: i32 length, name; i32 calls; i32 values, f32 [values], sums over the calls
    | i32 chunks | i32 length, name of the data set

Source: llama.cpp, tools/imatrix/imatrix.cpp and tools/quantize/quantize.cpp.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import unpack
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from puna.errors import FormatError, RequestError
from puna.gguf import TensorInfo, Value, ValueType
from puna.gguf.cursor import quoted
from puna.gguf.header import MAGIC
from puna.gguf.imatrix import Importance, read_imatrix
from puna.gguf.source import open_file, unreadable

__all__ = ["Weights", "read_weights"]

MAX_NAME = 1 << 10  # bytes of a tensor's or data set's name
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Weights:
    """columns: tensor -> float32 [k], or [experts, k].  dataset: the first text that they come from, or empty.

    chunks: windows of text that were run.
    """

    path: Path
    columns: Mapping[str, Floats]
    dataset: str
    chunks: int

    def of(self, tensor: TensorInfo) -> Floats | None:
        """float32 [matrices, k]; None where the tensor is not there. Raises RequestError for another shape."""
        found = self.columns.get(tensor.name)
        if found is None:
            return None
        matrices = math.prod(tensor.shape[:-2])
        if found.size == matrices * tensor.shape[-1]:
            return found.reshape(matrices, -1)
        if tensor.name == "token_embd.weight":  # its columns are the output's where the two are one
            return None
        what = (
            f"{found.size} columns of tensor {quoted(tensor.name)}, which has {matrices * tensor.shape[-1]}"
        )
        raise RequestError(what, where=str(self.path), fix="make it with the model that you quantise")

    def keys(self) -> dict[str, Value]:
        """What a quantised file says of them."""
        keys = {"quantize.imatrix.file": Value(ValueType.STRING, str(self.path))}
        if self.dataset:
            keys["quantize.imatrix.dataset"] = Value(ValueType.STRING, self.dataset)
        keys["quantize.imatrix.entries_count"] = Value(ValueType.UINT32, len(self.columns))
        if self.chunks > 0:
            keys["quantize.imatrix.chunks_count"] = Value(ValueType.UINT32, self.chunks)
        return keys


def read_weights(path: str | Path) -> Weights:
    """Read an importance matrix. Raises FormatError where the file is none."""
    path = Path(path)
    file, size = open_file(path)
    with file:
        try:
            if file.peek(4)[:4] != MAGIC:
                return Legacy(file, size, path).weights()
        except OSError as error:
            raise unreadable(error, str(path)) from None
    imatrix = read_imatrix(path)
    columns = {name: means(importance) for name, importance in imatrix.items()}
    return Weights(path, columns, next(iter(imatrix.datasets), ""), imatrix.chunks)


def means(importance: Importance) -> Floats:
    """Mean squares of the columns; an expert that saw nothing has 1 for each."""
    counts = importance.counts.reshape(-1, 1)
    sums = importance.sums.reshape(len(counts), -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(counts > 0, sums / counts, np.float32(1)).astype(np.float32)


class Legacy:
    """Reads the first form front to back; each length is checked against what is left of the file."""

    def __init__(self, file: BinaryIO, size: int, path: Path) -> None:
        self.file, self.left, self.path = file, size, path

    def weights(self) -> Weights:
        columns = {}
        for _ in range(self.number("the number of entries", self.left // 12, least=1)):
            name = self.text("the name of a tensor")
            calls = self.number(f"the calls of {quoted(name)}")
            count = self.number(f"the values of {quoted(name)}", self.left // 4, least=1)
            values = np.frombuffer(self.take(4 * count, "values"), "<f4").astype(np.float32)
            if not (np.isfinite(values) & (values >= 0)).all():
                raise self.error(f"{quoted(name)} has sums of squares that are none")
            columns[name] = values / np.float32(calls or 1)
        chunks = self.number("the number of chunks") if self.left else 0
        return Weights(self.path, columns, self.text("the data set") if self.left else "", chunks)

    def number(self, what: str, most: int = 2**31 - 1, least: int = 0) -> int:
        value: int = unpack("<i", self.take(4, what))[0]
        if not least <= value <= most:
            raise self.error(f"{what} is {value}, which cannot be")
        return value

    def text(self, what: str) -> str:
        length = self.number(f"the length of {what}", MAX_NAME)
        return os.fsdecode(self.take(length, what))

    def take(self, count: int, what: str) -> bytes:
        self.left -= count
        found = self.file.read(count) if self.left >= 0 else b""
        if len(found) != count:
            raise self.error(f"{what} would end behind the file")
        return found

    def error(self, what: str) -> FormatError:
        fix = "give what puna imatrix or llama-imatrix wrote"
        return FormatError(f"this is no importance matrix: {what}", where=str(self.path), fix=fix)
