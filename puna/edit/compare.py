"""How two models differ: metadata, tensors, and how far their values are apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from puna.edit.files import SPLIT, Silent, data_rows, whole_rows
from puna.gguf import GGUFFile, Metadata, TensorInfo, Value, ValueType
from puna.progress import Progress
from puna.quants import dequantize

__all__ = ["Difference", "Distance", "KeyChange", "TensorChange", "compare", "overall"]

Raw = NDArray[np.uint8]


@dataclass(frozen=True)
class KeyChange:
    """before, after: the value with its type; None where the key is not there."""

    key: str
    before: Value | None
    after: Value | None


@dataclass(frozen=True)
class Distance:
    """Of `count` values to others: the sum of the squares of what they differ by, and of the first's own.

    most: the largest difference.  odd: places where one is NaN and the other is not, or another infinity; they
    are in none of the sums.
    """

    count: int = 0
    error: float = 0.0
    power: float = 0.0
    most: float = 0.0
    odd: int = 0

    def __add__(self, other: Distance) -> Distance:
        return Distance(
            self.count + other.count,
            self.error + other.error,
            self.power + other.power,
            max(self.most, other.most),
            self.odd + other.odd,
        )

    @property
    def rmse(self) -> float:
        """Root of the mean square difference."""
        return math.sqrt(self.error / self.count) if self.count else 0.0

    @property
    def relative(self) -> float:
        """The same as a share of the root mean square of the first's values."""
        return math.sqrt(self.error / self.power) if self.power else math.inf if self.error else 0.0


@dataclass(frozen=True)
class TensorChange:
    """before, after: None where it is not there.  distance: None where shapes differ or values were not read."""

    name: str
    before: TensorInfo | None
    after: TensorInfo | None
    distance: Distance | None = None


@dataclass(frozen=True)
class Difference:
    """What differs. same: tensors that do not, to the byte."""

    keys: tuple[KeyChange, ...]
    tensors: tuple[TensorChange, ...]
    same: int

    def __bool__(self) -> bool:
        return bool(self.keys or self.tensors)


def compare(
    first: GGUFFile, second: GGUFFile, *, values: bool = True, progress: Progress | None = None
) -> Difference:
    """What the second model has other than the first; how they are cut into files does not count.

    values: read the tensors; without it, tensors of one type and shape pass for the same.
    """
    progress = progress or Silent()
    progress.start("comparing", sum(tensor.nbytes for tensor in first.tensors.values()) if values else 0)
    try:
        names = dict.fromkeys(chain(first.tensors, second.tensors))
        found = [tensor_change(first, second, name, values, progress) for name in names]
    finally:
        progress.done()
    changes = tuple(change for change in found if change is not None)
    return Difference(tuple(key_changes(first.metadata, second.metadata)), changes, len(found) - len(changes))


def overall(difference: Difference) -> Distance:
    """Over all tensors that have a distance."""
    distances = (change.distance for change in difference.tensors)
    return sum((distance for distance in distances if distance is not None), Distance())


def key_changes(first: Metadata, second: Metadata) -> Iterator[KeyChange]:
    for key in dict.fromkeys(chain(first, second)):
        before, after = (data.typed(key) if key in data else None for data in (first, second))
        if not key.startswith(SPLIT) and not same_value(before, after):
            yield KeyChange(key, before, after)


def same_value(before: Value | None, after: Value | None) -> bool:
    """Same type, same value; NaN is itself."""
    if before is None or after is None or before.type is not after.type:
        return before is after
    left, right = before.value, after.value
    if before.is_array is not after.is_array or (before.is_array and len(left) != len(right)):
        return False
    if before.type is ValueType.ARRAY:
        return all(map(same_value, left, right))
    if isinstance(left, np.ndarray):
        return bool(np.array_equal(left, right, equal_nan=left.dtype.kind == "f"))
    return bool(left == right or (left != left and right != right))


def tensor_change(
    first: GGUFFile, second: GGUFFile, name: str, values: bool, progress: Progress
) -> TensorChange | None:
    """None where the tensor is the same in both."""
    before, after = first.tensors.get(name), second.tensors.get(name)
    if before is None or after is None or before.shape != after.shape:
        return TensorChange(name, before, after)
    is_one_type = before.quant is after.quant
    if not values:
        return None if is_one_type else TensorChange(name, before, after)
    pairs = partial(row_pairs, first, second, before)
    is_same = is_one_type and all(np.array_equal(left, right) for left, right in pairs())
    total = None if is_same else sum((apart(before, after, *pair) for pair in pairs()), Distance())
    progress.advance(before.nbytes)
    first.drop(name)
    second.drop(name)
    return None if is_same else TensorChange(name, before, after, total)


def row_pairs(first: GGUFFile, second: GGUFFile, tensor: TensorInfo) -> Iterator[tuple[Raw, Raw]]:
    """The same rows of both, some at a time."""
    left, right = data_rows(first, tensor), data_rows(second, tensor)
    for part in whole_rows(tensor, len(left)):
        yield left[part], right[part]


def apart(before: TensorInfo, after: TensorInfo, left: Raw, right: Raw) -> Distance:
    """Of rows of blocks."""
    x = dequantize(before.quant, left).astype(np.float64)
    y = dequantize(after.quant, right).astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = y - x
    counts = np.isfinite(error)
    alike = (x == y) | (np.isnan(x) & np.isnan(y))
    errors, values = error[counts], x[counts]
    return Distance(
        count=errors.size,
        error=float(errors @ errors),
        power=float(values @ values),
        most=float(np.abs(errors).max(initial=0.0)),
        odd=int(np.count_nonzero(~counts & ~alike)),
    )
