"""Models cut into files and put together."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from gguf_files import read_all, same, write_sample
from tiny_model import write_tiny

from puna.edit.parts import cut, merge, parse_size, part_paths_of, split
from puna.errors import RequestError
from puna.gguf import GGUFFile, ValueType


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "in.gguf", metadata={"general.alignment": 64})


def split_at(source: Path, prefix: Path, **limits: int) -> list[Path]:
    with GGUFFile.open(source) as file:
        return split(file, prefix, cut(file, **limits))


def test_split_and_merge_is_identical(model: Path, tmp_path: Path) -> None:
    """A model cut into files and put together again is the same file, from whichever file one starts."""
    paths = split_at(model, tmp_path / "part", max_tensors=4)
    assert [path.name for path in paths] == [f"part-{i:05d}-of-00006.gguf" for i in range(1, 7)]
    for path in (paths[0], paths[3]):
        with GGUFFile.open(path) as file:
            merge(file, tmp_path / "out.gguf")
        assert (tmp_path / "out.gguf").read_bytes() == model.read_bytes()


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_form_is_kept(tmp_path: Path, byteorder: str) -> None:
    """Version, byte order and all kinds of values survive."""
    source = write_sample(tmp_path / "in.gguf", version=2, byteorder=byteorder)
    paths = split_at(source, tmp_path / "part", max_tensors=1)
    with GGUFFile.open(paths[1]) as file:
        assert (file.version, file.byteorder) == (2, byteorder)
        merge(file, tmp_path / "out.gguf")
    (before, data), (after, copied) = read_all(source), read_all(tmp_path / "out.gguf")
    assert data == copied
    assert list(before) == list(after)
    assert all(same(before[key], after[key]) for key in before)


@pytest.mark.parametrize("limit", [80_000, 100_000, 250_000, 10**9])
def test_files_are_as_large_as_planned(model: Path, tmp_path: Path, limit: int) -> None:
    """No file is over the limit, each has the bytes that the plan says, and no two neighbours would fit in one."""
    with GGUFFile.open(model) as file:
        parts = cut(file, max_bytes=limit)
        paths = split(file, tmp_path / "p", parts)
        assert [tensor.name for part in parts for tensor in part.tensors] == list(file.tensors)
    sizes = [path.stat().st_size for path in paths]
    assert sizes == [part.nbytes for part in parts]
    assert max(sizes) <= limit
    for size, following in zip(sizes, parts[1:], strict=False):
        assert size + following.tensors[0].nbytes > limit - 256  # its row and padding


def test_keys_of_llama_cpp(model: Path, tmp_path: Path) -> None:
    """The first file has all metadata, each has split.*; the gguf package reads them so."""
    paths = split_at(model, tmp_path / "p", max_tensors=9)
    for number, path in enumerate(paths):
        fields = gguf.GGUFReader(path).fields
        assert int(fields["split.no"].contents()) == number
        assert int(fields["split.count"].contents()) == len(paths) == 3
        assert int(fields["split.tensors.count"].contents()) == 21
        assert ("general.architecture" in fields) == (number == 0)
        assert fields["split.no"].types == [gguf.GGUFValueType.UINT16]
        assert fields["split.tensors.count"].types == [gguf.GGUFValueType.INT32]


def test_split_again(model: Path, tmp_path: Path) -> None:
    """A model in several files can be cut otherwise."""
    first = split_at(model, tmp_path / "a", max_tensors=4)
    second = split_at(first[2], tmp_path / "b", max_tensors=15)
    assert len(second) == 2
    with GGUFFile.open(second[0]) as file:
        assert file.metadata.type_of("split.count") is ValueType.UINT16
        assert {"general.name", "split.no"} <= set(file.metadata)
    merged = split_at(second[0], tmp_path / "c", max_tensors=99)
    assert read_all(merged[0])[1] == read_all(model)[1]


def test_limits_that_cannot_be(model: Path, tmp_path: Path) -> None:
    """A tensor over the limit is named, and nothing is written."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(
        RequestError, match=r"a file with tensor 'token_embd\.weight' takes [\d,]+ bytes, over 9,999"
    ):
        split_at(model, tmp_path / "p", max_bytes=9999)
    assert sorted(tmp_path.iterdir()) == before


def test_failure_leaves_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last file cannot be written, none is there."""
    calls = iter(range(100))

    def full(_: int) -> None:
        if next(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RequestError, match="cannot write the file: No space left on device"):
        split_at(model, tmp_path / "p", max_tensors=9)
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_out_is_never_in(model: Path, tmp_path: Path) -> None:
    """No file that is read is written to."""
    paths = split_at(model, tmp_path / "p", max_tensors=9)
    raw = [path.read_bytes() for path in paths]
    with pytest.raises(RequestError, match="this is the file to read"):
        split_at(paths[0], tmp_path / "p", max_tensors=10)
    with GGUFFile.open(paths[0]) as file, pytest.raises(RequestError, match="this is the file to read"):
        merge(file, paths[2])
    assert [path.read_bytes() for path in paths] == raw


def test_merge_of_one(model: Path, tmp_path: Path) -> None:
    """A model in one file needs no merging."""
    with GGUFFile.open(model) as file, pytest.raises(RequestError, match="in one file already"):
        merge(file, tmp_path / "out.gguf")


def test_sizes() -> None:
    """Sizes are in powers of 1000, as llama-gguf-split has them."""
    assert [parse_size(text) for text in ("2G", "500m", "1K", "7")] == [2 * 10**9, 5 * 10**8, 1000, 7]
    assert [parse_size(text) for text in ("1.5G", "150MB", "2 kib", "1B")] == [
        15 * 10**8,
        15 * 10**7,
        2048,
        1,
    ]
    for text in ("", "0", "-1", "2Q", "1.5.1G", "G", "MB", "0.1", "9" * 30):
        with pytest.raises(RequestError, match="is no size"):
            parse_size(text)
    assert [path.name for path in part_paths_of("a/b.c", 1)] == ["b.c-00001-of-00001.gguf"]
