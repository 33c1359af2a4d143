"""How two models differ."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import sample_metadata, write_sample
from tiny_model import write_tiny

from puna.edit import files
from puna.edit.compare import Difference, Distance, compare, overall
from puna.edit.parts import cut, split
from puna.gguf import GGUFFile, Value, ValueType, write
from puna.quants import by_name, quantize

F32, Q8_0 = by_name("F32"), by_name("Q8_0")


def difference(first: Path, second: Path, **options: Any) -> Difference:
    with GGUFFile.open(first) as a, GGUFFile.open(second) as b:
        return compare(a, b, **options)


def with_tensors(path: Path, metadata: Any = (), **tensors: Any) -> Path:
    """A file of float32 tensors, or of (type, values)."""
    rows = []
    for name, given in tensors.items():
        quant, values = given if isinstance(given, tuple) else (F32, np.asarray(given, np.float32))
        rows.append((name, quant, values.shape, quantize(quant, values)))
    write(path, dict(metadata), rows)
    return path


def test_same(tmp_path: Path) -> None:
    """A model does not differ from itself, nor from its parts, whatever metadata it has."""
    source = write_sample(tmp_path / "a.gguf")
    with GGUFFile.open(source) as file:
        paths = split(file, tmp_path / "p", cut(file, max_tensors=1))
    for other in (source, paths[1]):
        found = difference(source, other)
        assert not found
        assert found.same == 4


def test_keys(tmp_path: Path) -> None:
    """Keys of one alone, other values, and other types of one value are found."""
    keys = {"a": 1, "b": 2, "list": [1, 2], "nan": math.nan, "texts": ["a"]}
    with_tensors(tmp_path / "a.gguf", keys)
    others = {"b": Value(ValueType.UINT64, 2), "list": [1, 3], "nan": math.nan, "texts": ["a"], "new": "x"}
    with_tensors(tmp_path / "b.gguf", others)
    found = difference(tmp_path / "a.gguf", tmp_path / "b.gguf")
    assert [change.key for change in found.keys] == ["a", "b", "list", "new"]
    assert (found.keys[0].after, found.keys[3].before) == (None, None)


@pytest.mark.parametrize("key", list(sample_metadata()))
def test_each_kind_of_value(tmp_path: Path, key: str) -> None:
    """A value of any kind is equal to itself, and other than one of another length or kind."""
    with_tensors(tmp_path / "a.gguf", {key: sample_metadata()[key]})
    with_tensors(tmp_path / "b.gguf", {key: "another text"})
    assert not difference(tmp_path / "a.gguf", tmp_path / "a.gguf")
    assert difference(tmp_path / "a.gguf", tmp_path / "b.gguf").keys


def test_distance(tmp_path: Path) -> None:
    """RMSE, its share and the largest difference are those of the values, over all pieces."""
    x, y = np.random.default_rng(1).standard_normal((2, 60, 7)).astype(np.float32)
    with_tensors(tmp_path / "a.gguf", same=x, t=x, gone=x)
    with_tensors(tmp_path / "b.gguf", same=x, t=y, shaped=x[:3])
    for piece in (10, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "PIECE", piece)
            found = difference(tmp_path / "a.gguf", tmp_path / "b.gguf")
        assert [change.name for change in found.tensors] == ["t", "gone", "shaped"]
        distance = found.tensors[0].distance
        assert distance is not None
        error = (y - x).astype(np.float64)
        assert distance.rmse == pytest.approx(np.sqrt((error**2).mean()), rel=1e-6)
        assert distance.relative == pytest.approx(
            np.sqrt((error**2).mean() / (x.astype(float) ** 2).mean()), rel=1e-6
        )
        assert distance.most == pytest.approx(np.abs(error).max(), rel=1e-6)
        assert overall(found) == distance
        assert found.same == 1


def test_types_differ(tmp_path: Path) -> None:
    """A tensor in another type is measured by its values; without values, its type is enough."""
    x = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    a, b = with_tensors(tmp_path / "a.gguf", t=x), with_tensors(tmp_path / "b.gguf", t=(Q8_0, x))
    found = difference(a, b).tensors[0].distance
    assert found is not None
    assert 0 < found.relative < 0.01
    assert difference(a, b, values=False).tensors[0].distance is None
    c = with_tensors(tmp_path / "c.gguf", t=-x)
    assert not difference(a, c, values=False)
    assert difference(a, c)


def test_shapes_differ(tmp_path: Path) -> None:
    """Tensors of other shapes have no distance."""
    a = with_tensors(tmp_path / "a.gguf", t=np.zeros((2, 4)))
    b = with_tensors(tmp_path / "b.gguf", t=np.zeros((4, 2)))
    (change,) = difference(a, b).tensors
    assert change.distance is None


def test_not_finite(tmp_path: Path) -> None:
    """NaN and infinities are equal to themselves; where one side alone has them they are counted apart."""
    a = with_tensors(tmp_path / "a.gguf", t=[math.nan, math.inf, 1, 2, math.nan])
    b = with_tensors(tmp_path / "b.gguf", t=[math.nan, math.inf, 1, math.inf, 3])
    (change,) = difference(a, b).tensors
    assert change.distance == Distance(count=1, error=0, power=1, most=0, odd=2)
    assert not difference(a, a)


def test_bytes_count(tmp_path: Path) -> None:
    """Zeros of another sign are a difference, of size 0."""
    a, b = with_tensors(tmp_path / "a.gguf", t=[0.0]), with_tensors(tmp_path / "b.gguf", t=[-0.0])
    (change,) = difference(a, b).tensors
    assert change.distance is not None
    assert (change.distance.rmse, change.distance.relative) == (0, 0)
    c = with_tensors(tmp_path / "c.gguf", t=[1.0])
    assert overall(difference(a, c)).relative == math.inf


def test_model(tmp_path: Path) -> None:
    """Two models of other weights differ in all but what both have by construction."""
    a, b = (write_tiny(tmp_path / f"{seed}.gguf", seed=seed) for seed in (0, 1))
    found = difference(a, b)
    assert not found.keys
    assert (len(found.tensors), found.same) == (20, 1)  # output_norm is all ones
