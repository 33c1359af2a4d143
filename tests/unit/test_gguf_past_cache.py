"""Reads past the system's file cache, where the file is not in it and the system has such reads."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from gguf_files import F16

from puna.errors import FormatError
from puna.gguf import GGUFFile, source, write

ROWS, WIDTH = 1600, 1000  # 3.2 MB of F16, no whole number of blocks
NUMBERS = np.random.default_rng(1).integers(0, 256, (ROWS, 2 * WIDTH), np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small tensor, so that the large one begins within a block, and a last one at the file's end."""
    tensors = [("a", F16, (3, 5), NUMBERS[:3, :10].copy()), ("big", F16, NUMBERS.shape, NUMBERS)]
    tensors[1] = ("big", F16, (ROWS, WIDTH), NUMBERS)
    write(tmp_path / "m.gguf", {"general.architecture": "llama"}, tensors)
    return tmp_path / "m.gguf"


def forced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nothing counts as cached; the bytes of each read past the cache."""
    if not hasattr(os, "O_DIRECT"):
        pytest.skip("this system has no reads past the cache")
    came, read = list[int](), source.Plain._past_cache

    def noted(self: source.Plain, memory: np.ndarray, first: int) -> int:
        came.append(read(self, memory, first))
        return came[-1]

    monkeypatch.setattr(source, "is_cached", lambda *_: False)
    monkeypatch.setattr(source.Plain, "_past_cache", noted)
    return came


def test_bytes_are_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a tensor, up to the end of the file, and rows of it come as they lie there."""
    came = forced(monkeypatch)
    with GGUFFile.open(path, mmap=False) as file:
        assert np.array_equal(file.data("big"), NUMBERS)
        assert np.array_equal(file.rows("big", 7, 1599), NUMBERS[7:1599])
        assert np.array_equal(file.data("a"), NUMBERS[:3, :10])
    if not came[0]:
        pytest.skip("this disk has no reads past the cache")
    assert came[0] >= NUMBERS.nbytes  # and what lies beside it in its blocks
    assert came[2] == 0  # too little to be worth it


def test_what_is_cached_comes_from_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that has just been written is in the cache, and is read the usual way."""
    came = forced(monkeypatch)
    monkeypatch.setattr(source, "is_cached", lambda *_: True)
    with GGUFFile.open(path, mmap=False) as file:
        assert np.array_equal(file.data("big"), NUMBERS)
    assert came == [0]


def test_reads_that_fail_are_made_the_usual_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that refuses in the middle changes nothing but the way, and a short file is still told."""
    forced(monkeypatch)
    read, calls = os.preadv, list[int]()

    def refused(*given: object) -> int:
        calls.append(1)
        if len(calls) > 1:
            raise OSError("no")
        return read(given[0], [given[1][0][: 64 << 10]], *given[2:])  # type: ignore[arg-type, index]

    monkeypatch.setattr(os, "preadv", refused)
    with GGUFFile.open(path, mmap=False) as file:
        assert np.array_equal(file.data("big"), NUMBERS)
        os.truncate(path, path.stat().st_size - 100_000)
        with pytest.raises(FormatError, match="became shorter while it was open"):
            file.data("big")
    assert len(calls) > 1


@pytest.mark.parametrize("mmap", [True, False])
def test_rows_may_be_read_into_given_memory(path: Path, mmap: bool) -> None:
    """Where rows are read, they land in the room that is given if it is large enough; a mapped file needs none."""
    room = source.pages(2 << 20)
    with GGUFFile.open(path, mmap=mmap) as file:
        found = file.rows("big", 100, 200, room)
        assert np.array_equal(found, NUMBERS[100:200])
        assert np.shares_memory(found, room) == (not mmap)
        with pytest.raises(ValueError, match="read-only"):
            found[0, 0] = 1
        assert not np.shares_memory(file.rows("big", 0, ROWS, room), room)
