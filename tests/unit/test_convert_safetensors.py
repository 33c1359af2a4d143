"""Reading safetensors files: what is in a sound one, and the error for each way that one can be damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_folders import bf16, safetensors, with_header
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.convert.safetensors import SafeTensors
from puna.errors import FormatError

VALUES = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1.5], np.float32)}


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F64"])
def test_tensors_come_back(tmp_path: Path, dtype: str) -> None:
    """Shapes and values are those that were written; bfloat16 comes as its bits."""
    file = SafeTensors.open(safetensors(tmp_path / "x.safetensors", VALUES, dtype))
    assert {name: tensor.shape for name, tensor in file.tensors.items()} == {"a": (2, 3), "b": (1,)}
    for name, values in VALUES.items():
        assert np.array_equal(file.data(name), bf16(values) if dtype == "BF16" else values)
        assert not file.data(name).flags.writeable


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


DAMAGED: dict[str, tuple[Any, str]] = {
    "an unknown type": ({"a": entry(dtype="F3")}, "has the type 'F3'"),
    "a type that is no text": ({"a": entry(dtype=[])}, r"has the type \[\]"),
    "a shape with a hole": ({"a": entry(shape=[2, None])}, "has the shape"),
    "a negative dimension": ({"a": entry(shape=[-2])}, "has the shape"),
    "a dimension that is true": ({"a": entry(shape=[True])}, "has the shape"),
    "many dimensions": ({"a": entry(shape=[1] * 9)}, "has the shape"),
    "a shape of other bytes": ({"a": entry(shape=[3])}, "takes 12 bytes, not the 8"),
    "a shape beyond all files": ({"a": entry(shape=[2**62, 2**62])}, "not the 8"),
    "offsets that are no pair": ({"a": entry(data_offsets=[0])}, "has the offsets"),
    "offsets that run back": ({"a": entry(data_offsets=[8, 0])}, "not the -8"),
    "offsets behind the file": ({"a": entry(data_offsets=[8, 16])}, "would end at byte"),
    "a key too few": ({"a": {"dtype": "F32", "shape": [2]}}, "without dtype, shape or data_offsets"),
    "an entry that is none": ({"a": 3}, "without dtype"),
    "two on one place": ({"a": entry(), "b": entry()}, "overlaps the one before it"),
    "a hole": ({"a": entry(shape=[1], data_offsets=[4, 8])}, "leaves a hole before it"),
    "data left over": ({"a": entry(shape=[1], data_offsets=[0, 4])}, "the tensors end at byte"),
    "no object": ([1], "no JSON object"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_header_is_an_error(tmp_path: Path, what: str) -> None:
    """Each fault of the header's entries is refused, the file and the tensor named."""
    header, message = DAMAGED[what]
    path = with_header(tmp_path / "x.safetensors", json.dumps(header).encode(), bytes(8))
    with pytest.raises(FormatError, match=message) as caught:
        SafeTensors.open(path)
    assert str(path) in str(caught.value)


RAW: dict[str, tuple[bytes, int | None, str]] = {
    "a header longer than the file": (b"{}", 1000, "said to take 1000 bytes"),
    "a header of exabytes": (b"{}", 2**63, "said to take"),
    "no JSON": (b"{", None, "no sound JSON"),
    "no UTF-8": (b'{"\xff": 1}', None, "no sound JSON"),
    "nested a million deep": (b"[" * 1_000_000, None, "no sound JSON"),
    "a number of many digits": (b'{"a": ' + b"9" * 5000 + b"}", None, "no sound JSON"),
    "a name twice": (b'{"a": 1, "a": 2}', None, "'a' is there twice"),
}


@pytest.mark.parametrize("what", RAW)
def test_what_is_no_header_is_an_error(tmp_path: Path, what: str) -> None:
    """A length or JSON that is not sound is refused before anything is allocated."""
    header, length, message = RAW[what]
    with pytest.raises(FormatError, match=message):
        SafeTensors.open(with_header(tmp_path / "x.safetensors", header, b"", length))


def test_files_that_are_no_safetensors(tmp_path: Path) -> None:
    """An empty file, a missing one, a folder and a Git LFS pointer each have their own error."""
    path = tmp_path / "x.safetensors"
    with pytest.raises(FormatError, match="cannot read the file"):
        SafeTensors.open(path)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="the file has 0"):
        SafeTensors.open(path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(FormatError, match="Git LFS pointer"):
        SafeTensors.open(path)
    with pytest.raises(FormatError, match="folder"):
        SafeTensors.open(tmp_path)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(place=st.integers(0, 400), byte=st.integers(0, 255), cut=st.integers(0, 40))
def test_any_byte_may_be_wrong(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int, cut: int
) -> None:
    """A file with a wrong byte, or cut short, is read or refused: nothing else happens."""
    path = safetensors(tmp_path_factory.mktemp("x") / "x.safetensors", VALUES)
    raw = bytearray(path.read_bytes())
    raw[place % len(raw)] = byte
    path.write_bytes(raw[: len(raw) - cut])
    try:
        file = SafeTensors.open(path)
    except FormatError:
        return
    for name in file.tensors:
        file.data(name)
