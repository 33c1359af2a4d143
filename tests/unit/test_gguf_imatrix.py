"""Importance matrices in llama.cpp's GGUF form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from puna.errors import FormatError
from puna.gguf import write
from puna.gguf.imatrix import Imatrix, Importance, read_imatrix, write_imatrix
from puna.quants import by_name

PLAIN = Importance(np.array([1, 4, 9], np.float32), np.array([7], np.float32))
MIXED = Importance(np.array([[1, 2, 3], [0, 0, 0]], np.float32), np.array([5, 0], np.float32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    entries = {"blk.0.ffn_up_exps.weight": MIXED, "blk.0.attn_q.weight": PLAIN}
    write_imatrix(tmp_path / "a.gguf", Imatrix(entries, ["text.txt"], 2, 512))
    return tmp_path / "a.gguf"


def test_what_was_written_is_read(path: Path) -> None:
    """Sums, counts, datasets and windows come back, a plain weight's as [k], a mixture's by expert."""
    found = read_imatrix(path)
    assert (found.datasets, found.chunks, found.chunk_size) == (("text.txt",), 2, 512)
    for name, wanted in (("blk.0.attn_q.weight", PLAIN), ("blk.0.ffn_up_exps.weight", MIXED)):
        assert np.array_equal(found[name].sums, wanted.sums)
        assert np.array_equal(found[name].counts, wanted.counts)


def test_the_form_is_that_of_llama_imatrix(path: Path) -> None:
    """The gguf package finds the tensors by name, dimensions in GGUF's order, and the metadata of their types."""
    reader = gguf.GGUFReader(path)
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert shapes == {
        "blk.0.attn_q.weight.in_sum2": [3],
        "blk.0.attn_q.weight.counts": [1],
        "blk.0.ffn_up_exps.weight.in_sum2": [3, 2],
        "blk.0.ffn_up_exps.weight.counts": [1, 2],
    }
    kinds = {name: field.types for name, field in reader.fields.items() if "." in name}
    assert kinds["general.type"] == [gguf.GGUFValueType.STRING]
    assert kinds["imatrix.datasets"] == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING]
    assert kinds["imatrix.chunk_count"] == kinds["imatrix.chunk_size"] == [gguf.GGUFValueType.UINT32]


def foreign(path: Path, kind: str = "imatrix", **tensors: Any) -> Path:
    """A file with tensors of weight `w`, as other programs may write them."""
    quant = by_name("F32")
    table = [
        (f"w.{name}", quant, values.shape, values.astype("<f4").view(np.uint8))
        for name, values in tensors.items()
    ]
    write(path, {"general.type": kind}, table)
    return path


def test_more_than_sums_may_be_there(tmp_path: Path) -> None:
    """Tensors of other kinds are passed over, metadata may be missing, and a single row is one of a plain weight."""
    sums = np.ones((1, 4))
    found = read_imatrix(
        foreign(tmp_path / "a.gguf", in_sum2=sums, counts=np.ones((1, 1)), in_sum=-sums, stats=sums * np.nan)
    )
    assert list(found) == ["w"]
    assert found["w"].sums.shape == (4,)
    assert (found.datasets, found.chunks) == ((), 0)


@pytest.mark.parametrize(
    ("tensors", "fault"),
    [
        ({}, "no importance of any tensor"),
        ({"kind": "model", "in_sum2": np.ones(4)}, "no importance matrix"),
        ({"in_sum2": np.ones(4)}, r"'w\.counts' is missing"),
        ({"in_sum2": np.ones(4), "counts": np.ones(2)}, r"\(4,\) do not go with 2 counts"),
        ({"in_sum2": np.ones((3, 4)), "counts": np.ones(1)}, r"\(3, 4\) do not go with 1 counts"),
        ({"in_sum2": np.ones((2, 3, 4)), "counts": np.ones(2)}, "do not go with"),
        ({"in_sum2": -np.ones(4), "counts": np.ones(1)}, "below 0"),
        ({"in_sum2": np.ones(4), "counts": np.array([np.nan])}, "that are none"),
    ],
)
def test_unsound_files_are_refused(tmp_path: Path, tensors: dict[str, Any], fault: str) -> None:
    """A FormatError names the file, the tensor and what is wrong with it."""
    with pytest.raises(FormatError, match=rf"a\.gguf: .*{fault}"):
        read_imatrix(foreign(tmp_path / "a.gguf", **tensors))


def test_sums_are_f32(tmp_path: Path) -> None:
    """A tensor of another type is refused."""
    raw = np.zeros(2 * 4, np.uint8)
    write(tmp_path / "a.gguf", {"general.type": "imatrix"}, [("w.in_sum2", by_name("F16"), (4,), raw)])
    with pytest.raises(FormatError, match=r"'w\.in_sum2' is F16"):
        read_imatrix(tmp_path / "a.gguf")
