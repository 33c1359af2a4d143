"""What a GGUF file says about a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from puna.quants import QuantType

__all__ = ["MAX_DIMENSIONS", "TensorInfo", "shape_fault", "tensor_bytes"]

MAX_DIMENSIONS = 4
MAX_ELEMENTS = 1 << 63


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies and how to read it.

    shape: in NumPy's order, slowest first; the file has it the other way round.
    offset: of its first byte in its file. nbytes: of its data. part: which of the model's files, from 0.
    """

    name: str
    quant: QuantType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: int = 0


def shape_fault(quant: QuantType, shape: Sequence[int]) -> str | None:
    """Why no tensor of this type can have this shape, or None where one can."""
    if not 1 <= len(shape) <= MAX_DIMENSIONS:
        return f"has {len(shape)} dimensions, and 1 to {MAX_DIMENSIONS} are allowed"
    if min(shape) < 1:
        return f"has the shape {tuple(shape)}, and a dimension is at least 1"
    if prod(shape) >= MAX_ELEMENTS:
        return f"has the shape {tuple(shape)}, of over 2^63 elements"
    if shape[-1] % quant.block:
        return (
            f"has rows of {shape[-1]} elements, no multiple of the {quant.block} in a block of {quant.name}"
        )
    return None


def tensor_bytes(quant: QuantType, shape: Sequence[int]) -> int:
    """Bytes of a tensor of a shape that `shape_fault` passes."""
    return prod(shape[:-1]) * quant.row_bytes(shape[-1])
