"""Models in several files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import sample_metadata, sample_tensors

from puna.errors import FormatError, PunaError
from puna.gguf import GGUFFile, Value, ValueType, write

COUNT = 3


def name(part: int) -> str:
    return f"model-{part + 1:05d}-of-{COUNT:05d}.gguf"


def write_parts(folder: Path, changes: Mapping[int, dict[str, Any]] | None = None, **options: Any) -> None:
    """Four tensors in three files; the first has two and the metadata. changes: metadata of single parts."""
    tensors = sample_tensors()
    for part, rows in enumerate((tensors[:2], tensors[2:3], tensors[3:])):
        metadata = {
            **(sample_metadata() if part == 0 else {}),
            "split.no": Value(ValueType.UINT16, part),
            "split.count": Value(ValueType.UINT16, COUNT),
            "split.tensors.count": Value(ValueType.INT32, len(tensors)),
            **(changes or {}).get(part, {}),
        }
        kept = {key: value for key, value in metadata.items() if value is not None}
        write(folder / name(part), kept, rows, **options)


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "plain"])
@pytest.mark.parametrize("part", range(COUNT))
def test_any_part_opens_all(tmp_path: Path, part: int, mmap: bool) -> None:
    """Opening any file of a model opens all, with the metadata of the first."""
    write_parts(tmp_path)
    with GGUFFile.open(tmp_path / name(part), mmap=mmap) as file:
        assert file.path.name == name(part)
        assert [path.name for path in file.paths] == [name(number) for number in range(COUNT)]
        assert file.size == sum(path.stat().st_size for path in file.paths)
        assert file.metadata.string("general.architecture") == "llama"
        assert {tensor.name: tensor.part for tensor in file.tensors.values()} == {
            "norm": 0,
            "a.weight": 0,
            "b.weight": 1,
            "c": 2,
        }
        for tensor, _, _, data in sample_tensors():
            assert np.array_equal(file.data(tensor), data)


def test_big_endian_parts(tmp_path: Path) -> None:
    """Parts may be big-endian, all of them."""
    write_parts(tmp_path, byteorder="big")
    with GGUFFile.open(tmp_path / name(1)) as file:
        assert all(np.array_equal(file.data(tensor), data) for tensor, _, _, data in sample_tensors())


def test_one_part_of_one(tmp_path: Path) -> None:
    """A model split into one file is a file like any other, whatever its name."""
    write(tmp_path / "m.gguf", {"split.count": 1, "split.no": 0}, sample_tensors())
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert file.paths == (tmp_path / "m.gguf",)


def test_a_name_alone_makes_no_part(tmp_path: Path) -> None:
    """A file named like a part, whose metadata say nothing of parts, is a whole model."""
    write(tmp_path / name(1), {}, sample_tensors())
    with GGUFFile.open(tmp_path / name(1)) as file:
        assert len(file.paths) == 1


def swap(folder: Path) -> None:
    (folder / name(1)).rename(folder / "x")
    (folder / name(2)).rename(folder / name(1))
    (folder / "x").rename(folder / name(2))


def replace(part: int, **options: Any) -> Callable[[Path], None]:
    """One part from another run of the writer."""

    def change(folder: Path) -> None:
        other = folder / "other"
        other.mkdir()
        write_parts(other, **options)
        (other / name(part)).replace(folder / name(part))

    return change


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (
        lambda folder: (folder / name(2)).unlink(),
        "model-00003-of-00003.gguf: part 3 of 3 is missing; put",
    ),
    "swapped": (
        swap,
        "model-00002-of-00003.gguf: its split.no is 2, where the other parts make it 1; take all",
    ),
    "other count": (replace(1, changes={1: {"split.count": 4}}), "its split.count is 4, where"),
    "other tensors": (
        replace(1, changes={1: {"split.tensors.count": 5}}),
        "its split.tensors.count is 5, where",
    ),
    "no number": (replace(1, changes={1: {"split.no": None}}), "missing metadata key 'split.no'"),
    "no count": (replace(1, changes={1: {"split.count": None}}), "missing metadata key 'split.count'"),
    "number a string": (replace(2, changes={2: {"split.no": "2"}}), "'split.no' is string, where an integer"),
    "other byte order": (
        replace(2, byteorder="big"),
        "its byte order is big, where the other parts make it little",
    ),
    "other version": (replace(2, version=2), "its version is 2, where the other parts make it 3"),
    "damaged": (
        lambda folder: (folder / name(1)).write_bytes(b"GGUF"),
        "00002-of-00003.gguf: the version would end",
    ),
    "a folder": (
        lambda folder: ((folder / name(1)).unlink(), (folder / name(1)).mkdir()),
        "this is a folder",
    ),
}


@pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS)
def test_parts_that_do_not_fit(tmp_path: Path, change: Callable[[Path], object], message: str) -> None:
    """A part that is missing or from elsewhere is one line that names it, and no file stays open."""
    write_parts(tmp_path)
    change(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for mmap in (True, False):
            with pytest.raises(PunaError) as error:
                GGUFFile.open(tmp_path / name(0), mmap=mmap)
            assert message in str(error.value)
            assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", ["model.gguf", name(1), "model-00001-of-00004.gguf", "model-1-of-3.gguf"])
def test_renamed_part(tmp_path: Path, wrong: str) -> None:
    """A part whose name does not say so is refused with the name it should have."""
    write_parts(tmp_path)
    (tmp_path / name(0)).rename(tmp_path / wrong)
    with pytest.raises(FormatError, match=r"part 1 of 3, but its name .*model-00001-of-00003\.gguf"):
        GGUFFile.open(tmp_path / wrong)


def test_tensor_in_two_parts(tmp_path: Path) -> None:
    """A tensor that two parts have is refused with both."""
    for part in range(2):
        metadata = {"split.no": part, "split.count": 2}
        write(tmp_path / f"m-0000{part + 1}-of-00002.gguf", metadata, sample_tensors()[:1])
    with pytest.raises(
        FormatError, match=r"00002-of-00002\.gguf: tensor 'norm' is in .*00001-of-00002\.gguf too"
    ):
        GGUFFile.open(tmp_path / "m-00001-of-00002.gguf")


@pytest.mark.parametrize("number", [-1, 2])
def test_part_outside_the_count(tmp_path: Path, number: int) -> None:
    """A part past the last, or before the first, is refused, even where its name agrees."""
    path = tmp_path / f"m-{number + 1:05d}-of-00002.gguf"
    write(path, {"split.no": number, "split.count": 2}, [])
    with pytest.raises(FormatError, match=rf"this is part {number + 1} of 2"):
        GGUFFile.open(path)


def test_count_of_parts_is_not_believed(tmp_path: Path) -> None:
    """A file that says it is one of very many is refused at once."""
    write(tmp_path / "m-00001-of-00001.gguf", {"split.no": 0, "split.count": 2**62}, [])
    with pytest.raises(FormatError, match=r"part 1 of 4611686018427387904, but its name does not"):
        GGUFFile.open(tmp_path / "m-00001-of-00001.gguf")
