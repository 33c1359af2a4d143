"""Model files as sources: what every tool here reads, and rows of it as they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from puna.gguf import GGUFFile, TensorInfo, Value
from puna.progress import Progress
from puna.quants import QuantType

__all__ = ["SPLIT", "Row", "Silent", "copied", "data_rows", "metadata_of", "whole_rows"]

Raw = NDArray[np.uint8]
# A tensor as `write` takes it: name, type, shape, and what gives its bytes in pieces.
Row = tuple[str, QuantType, Sequence[int], Callable[[], Iterator[Raw]]]
SPLIT = "split."  # before the keys that say how a model is cut into files
PIECE = 1 << 20  # values of a tensor that are in memory at once


class Silent:
    """Progress that nobody is told of."""

    def start(self, label: str, total: int) -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def done(self) -> None:
        pass


def metadata_of(file: GGUFFile) -> dict[str, Value]:
    """All of the model's metadata with their types, but for how it is cut into files."""
    return {key: file.metadata.typed(key) for key in file.metadata if not key.startswith(SPLIT)}


def data_rows(file: GGUFFile, tensor: TensorInfo) -> Raw:
    """A tensor's bytes as a matrix: uint8 [rows, bytes of a row]."""
    raw = file.data(tensor.name)
    return raw.reshape(-1, raw.shape[-1])


def whole_rows(tensor: TensorInfo, count: int) -> Iterator[slice]:
    """Slices of `count` rows that hold at most PIECE values each, but at least one row."""
    step = max(1, PIECE // tensor.shape[-1])
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def copied(file: GGUFFile, tensor: TensorInfo, progress: Progress) -> Row:
    """A tensor as it is. The pages that were read are given back when the last piece is written."""
    return tensor.name, tensor.quant, tensor.shape, partial(pieces, file, tensor, progress)


def pieces(file: GGUFFile, tensor: TensorInfo, progress: Progress) -> Iterator[Raw]:
    rows = data_rows(file, tensor)
    for part in whole_rows(tensor, len(rows)):
        piece = rows[part]
        yield piece
        progress.advance(piece.size)
    file.drop(tensor.name)
