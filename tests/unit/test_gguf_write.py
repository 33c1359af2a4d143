"""Writing GGUF: all of a file or nothing, one tensor in memory, the same bytes back."""

from __future__ import annotations

import os
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import (
    F16,
    F32,
    Q4_0,
    Q8_0,
    array,
    gguf,
    key,
    random_bytes,
    read_all,
    same,
    text,
    write_sample,
)

from puna.errors import PunaError, RequestError
from puna.gguf import GGUFFile, Metadata, Value, ValueType, write


def copy(source: Path, target: Path, **options: Any) -> None:
    """Write a file again from what was read of it."""
    with GGUFFile.open(source) as file:
        rows = ((t.name, t.quant, t.shape, lambda t=t: file.data(t.name)) for t in file.tensors.values())
        write(
            target, file.metadata, rows, **{"version": file.version, "byteorder": file.byteorder, **options}
        )


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("alignment", [1, 8, 32, 256])
def test_copy_is_identical(tmp_path: Path, version: int, byteorder: Any, alignment: int) -> None:
    """What was read, written again, is the same file."""
    write_sample(tmp_path / "a.gguf", version=version, byteorder=byteorder, alignment=alignment)
    copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    with GGUFFile.open(tmp_path / "b.gguf") as file:
        assert file.alignment == alignment
        assert all(tensor.offset % alignment == 0 for tensor in file.tensors.values())


def test_byte_orders_hold_the_same(tmp_path: Path) -> None:
    """A model turned to the other byte order and back is the same file."""
    write_sample(tmp_path / "a.gguf")
    copy(tmp_path / "a.gguf", tmp_path / "b.gguf", byteorder="big")
    copy(tmp_path / "b.gguf", tmp_path / "c.gguf", byteorder="little")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "c.gguf").read_bytes()
    assert (tmp_path / "a.gguf").read_bytes() != (tmp_path / "b.gguf").read_bytes()


def test_bytes_of_the_format(tmp_path: Path) -> None:
    """A file has the bytes that the specification asks for."""
    keys = [key("a", 4, b"\5\0\0\0"), key("b", 9, array(8, 2, text("x") + text("é")))]
    write(tmp_path / "m.gguf", {"a": 5, "b": ["x", "é"]}, [])
    assert (tmp_path / "m.gguf").read_bytes() == gguf(keys)


def test_text_that_is_not_utf8_survives(tmp_path: Path) -> None:
    """Vocabularies hold pieces of characters: their bytes come back."""
    pieces = [b"\xc3", b"\xff\xfe", b"\xed\xa0\x80", "é".encode(), b"\0"]
    raw = gguf([key("a", 9, array(8, len(pieces), b"".join(map(text, pieces)))), key("b", 8, text(b"\x80"))])
    (tmp_path / "a.gguf").write_bytes(raw)
    copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == raw
    words = read_all(tmp_path / "b.gguf")[0]["a"]
    assert [word.encode("utf-8", "surrogateescape") for word in words] == pieces


def test_one_tensor_in_memory(tmp_path: Path) -> None:
    """Functions give the data one by one, each called once."""
    calls = []

    def data(number: int) -> Any:
        calls.append(number)
        return np.zeros(1 << 20, np.uint8)

    tracemalloc.start()
    write(tmp_path / "m.gguf", {}, [(f"t{i}", F32, (1 << 18,), lambda i=i: data(i)) for i in range(16)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert calls == list(range(16))
    assert peak < 3 << 20


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_data_in_pieces(tmp_path: Path, byteorder: Any) -> None:
    """A function may give a tensor in pieces of whole blocks, of which one is in memory."""
    data = random_bytes((64, 36), 1)
    write(tmp_path / "a.gguf", {}, [("t", Q4_0, (64, 64), data)], byteorder=byteorder)
    write(tmp_path / "b.gguf", {}, [("t", Q4_0, (64, 64), lambda: iter(data))], byteorder=byteorder)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    tracemalloc.start()
    zeros = [("t", F32, (1 << 20,), lambda: (np.zeros(1 << 16, np.uint8) for _ in range(64)))]
    write(tmp_path / "a.gguf", {}, zeros, byteorder=byteorder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("count", [0, 2, 4])
def test_pieces_that_are_no_tensor(tmp_path: Path, count: int) -> None:
    """Pieces that are fewer or more bytes than the tensor are refused, and leave nothing."""
    pieces = [np.zeros(4, np.uint8)] * count
    with pytest.raises(RequestError, match=f"comes as {4 * count} elements of uint8; give 12 of uint8"):
        write(tmp_path / "m.gguf", {}, [("t", F32, (3,), lambda: iter(pieces))])
    assert list(tmp_path.iterdir()) == []


def test_data_in_any_layout(tmp_path: Path) -> None:
    """Data may be flat, shaped, or not contiguous."""
    data = random_bytes((4, 36), 1)
    columns = np.asfortranarray(data)
    write(tmp_path / "m.gguf", {}, [("a", Q4_0, (4, 64), data.ravel()), ("b", Q4_0, (4, 64), columns)])
    assert set(read_all(tmp_path / "m.gguf")[1].values()) == {data.tobytes()}


def test_typed_values_of_a_file(tmp_path: Path) -> None:
    """Single values of one file can go into another with their types."""
    with GGUFFile.open(write_sample(tmp_path / "a.gguf")) as file:
        values = {name: file.metadata.typed(name) for name in file.metadata}
        write(tmp_path / "b.gguf", {**values, "new": 1}, [])
        with GGUFFile.open(tmp_path / "b.gguf") as other:
            assert list(other.metadata) == [*file.metadata, "new"]
            for name in file.metadata:
                assert other.metadata.type_of(name) is file.metadata.type_of(name)
                assert other.metadata.element_type(name) is file.metadata.element_type(name)
                assert same(other.metadata[name], file.metadata[name])


def test_alignment_from_the_metadata(tmp_path: Path) -> None:
    """The metadata's alignment holds where no other is given; the key is added for any but the default."""
    tensors = [("t", F32, (1,), bytes_of(4))]
    write(tmp_path / "a.gguf", {"general.alignment": 128}, tensors)
    write(tmp_path / "b.gguf", {}, tensors, alignment=128)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    write(tmp_path / "c.gguf", {}, tensors, alignment=32)
    assert read_all(tmp_path / "c.gguf")[0] == {}


def bytes_of(count: int) -> Any:
    return np.zeros(count, np.uint8)


TENSOR = ("t", F32, (2,), bytes_of(8))
REFUSED: dict[str, tuple[dict[str, Any], list[Any], dict[str, Any], str]] = {
    "no type": ({"a": None}, [], {}, "metadata key 'a': NoneType has no GGUF type"),
    "empty list": ({"a": []}, [], {}, "metadata key 'a': an empty list has no obvious type"),
    "out of range": ({"a": Value(ValueType.INT8, 128)}, [], {}, "128 does not fit int8"),
    "empty key": ({"": 1}, [], {}, "metadata key '' is empty"),
    "long key": ({"k" * 65536: 1}, [], {}, "has 65536 bytes, and 65535 are allowed"),
    "key no text": ({"\ud800": 1}, [], {}, "is not Unicode text"),
    "lone surrogate": ({"a": ["\ud800"]}, [], {}, "metadata key 'a': 'utf-8' codec can't encode"),
    "name no text": ({}, [("\udcff", *TENSOR[1:])], {}, "is not Unicode text"),
    "duplicate tensor": ({}, [TENSOR, TENSOR], {}, "tensor 't' is there twice"),
    "no dimensions": ({}, [("t", F32, (), bytes_of(4))], {}, "tensor 't' has 0 dimensions"),
    "five dimensions": ({}, [("t", F32, (1,) * 5, bytes_of(4))], {}, "tensor 't' has 5 dimensions"),
    "empty dimension": ({}, [("t", F32, (2, 0), bytes_of(0))], {}, "has the shape (2, 0)"),
    "half a block": (
        {},
        [("t", Q8_0, (16,), bytes_of(17))],
        {},
        "rows of 16 elements, no multiple of the 32",
    ),
    "too few bytes": (
        {},
        [("t", F16, (3,), bytes_of(5))],
        {},
        "comes as 5 elements of uint8; give 6 of uint8",
    ),
    "other elements": (
        {},
        [("t", F32, (2,), np.zeros(2, np.float32))],
        {},
        "comes as 2 elements of float32; give 8",
    ),
    "version": ({}, [TENSOR], {"version": 1}, "cannot write GGUF version 1, little-endian"),
    "byte order": ({}, [TENSOR], {"byteorder": "native"}, "cannot write GGUF version 3, native-endian"),
    "alignment 0": ({}, [TENSOR], {"alignment": 0}, "the alignment is 0, where a power of two"),
    "alignment 24": ({"general.alignment": 24}, [TENSOR], {}, "the alignment is 24, where a power of two"),
    "two alignments": ({"general.alignment": 64}, [TENSOR], {"alignment": 32}, "alignment 32 differs from"),
    "alignment's type": ({"general.alignment": Value(ValueType.INT32, 64)}, [TENSOR], {}, "is no uint32"),
}


@pytest.mark.parametrize(("metadata", "tensors", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path: Path, metadata: Any, tensors: Any, options: Any, message: str) -> None:
    """What GGUF cannot hold is one line that names the file, and leaves nothing behind."""
    with pytest.raises(RequestError) as error:
        write(tmp_path / "m.gguf", metadata, tensors, **options)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{tmp_path / 'm.gguf'}: ")
    assert str(error.value).isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt, MemoryError, PunaError("no")], ids=repr)
def test_failure_leaves_the_old_file(tmp_path: Path, failure: BaseException) -> None:
    """Whatever breaks the writing, the old file stays as it was, and no other."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")

    def fail() -> Any:
        raise failure

    with pytest.raises((KeyboardInterrupt, MemoryError, PunaError)):
        write(path, {}, [TENSOR, ("u", F32, (1,), fail)])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is a RequestError with the reason, and leaves nothing behind."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        RequestError, match=r"m\.gguf: cannot write the file: No space left on device; free some"
    ):
        write(tmp_path / "m.gguf", {}, [TENSOR])
    assert list(tmp_path.iterdir()) == []


PLACES: dict[str, Callable[[Path], Path]] = {
    "no such folder": lambda folder: folder / "none" / "m.gguf",
    "a folder": lambda folder: folder,
    "file as a folder": lambda folder: write_sample(folder / "m.gguf") / "m.gguf",
    "null": lambda folder: folder / "a\0b.gguf",
    "nothing": lambda folder: Path(),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_impossible_places(tmp_path: Path, place: Callable[[Path], Path]) -> None:
    """A path where no file can be is one line."""
    path = place(tmp_path)
    with pytest.raises(RequestError) as error:
        write(path, {}, [TENSOR])
    assert str(error.value).isprintable()


def test_replaces_a_file_that_is_open(tmp_path: Path) -> None:
    """A mapped model can be rewritten in its place from its own data; what was read stays good."""
    path = write_sample(tmp_path / "m.gguf")
    with GGUFFile.open(path) as file:
        view, before = file.data("c"), file.data("c").copy()
        write(path, {}, [("c", F32, file.tensors["c"].shape, lambda: file.data("c"))])
        assert np.array_equal(view, before)
    assert read_all(path)[1] == {"c": before.tobytes()}


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    """The file gets the mode that the user's umask asks for."""
    (tmp_path / "other").write_bytes(b"")
    write(tmp_path / "m.gguf", {}, [])
    assert stat.S_IMODE((tmp_path / "m.gguf").stat().st_mode) == stat.S_IMODE(
        (tmp_path / "other").stat().st_mode
    )


def test_metadata_object(tmp_path: Path) -> None:
    """Metadata made of Python values can be written as they are."""
    write(tmp_path / "m.gguf", Metadata.of({"a": [1, 2], "b": "c"}), [])
    assert same(list(read_all(tmp_path / "m.gguf")[0].values()), [[1, 2], "c"])
