"""Files that are not GGUF, damaged, or made to harm: each is one line that names the file and the field."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from gguf_files import array, gguf, key, read_all, row, text, write_sample

from puna.errors import FormatError
from puna.gguf import GGUFFile, write

HUGE = 2**63
U8, U32, BOOL, STRING, ARRAY = 0, 4, 7, 8, 9


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def alignment(value: int) -> bytes:
    return key("general.alignment", U32, u32(value))


def nested(depth: int) -> bytes:
    """`depth` arrays, one in the other, the innermost of one byte."""
    return array(U8, 1, b"x") if depth == 1 else array(ARRAY, 1, nested(depth - 1))


DATA = bytes(64)
FAULTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "other magic": (b"GGML" + bytes(64), "this is no GGUF file: it begins with b'GGML'"),
    "zeros": (bytes(64), "this is no GGUF file"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
    "web page": (b"<!DOCTYPE html><title>404</title>", "a web page"),
    "old GGML": (b"tjgg" + bytes(64), "a GGML file from before GGUF; convert"),
    "zip": (b"PK\x03\x04" + bytes(64), "a zip or PyTorch file"),
    "magic alone": (b"GGUF", "the version would end at byte 8, but the file ends at byte 4"),
    "version 0": (gguf(version=0), "GGUF version 0 is not 2 or 3"),
    "version 1": (gguf(version=1), "GGUF version 1 is not 2 or 3; convert"),
    "version 99": (gguf(version=99), "GGUF version 99 is not 2 or 3"),
    "big-endian version 1": (gguf(version=1 << 24), "GGUF version 1 is not 2 or 3"),
    "count of keys": (gguf(key_count=HUGE), f"the number of metadata keys is {HUGE}, but only 0 bytes follow"),
    "count of tensors": (gguf(row_count=HUGE), f"the number of tensors is {HUGE}, but only 8 bytes follow"),
    "one key too few": (gguf([key("a", U32, u32(1))], key_count=2), "the number of metadata keys is 2"),
    "one tensor too few": (gguf(rows=[row()], data=DATA, row_count=4), "the number of tensors is 4, but only"),
    "length of a key": (gguf([u64(HUGE) + bytes(30)]), "metadata key 1 of 1 has 9223372036854775808 bytes"),
    "long key": (gguf([key("k" * 65536, U8, b"x")]), "metadata key 1 of 1 has 65536 bytes, and 65535 are allowed"),
    "empty key": (gguf([key("", U32, u32(1))]), "metadata key 1 of 1 is empty"),
    "key not UTF-8": (gguf([key(b"ab\xff\n", U32, u32(1))]), r"metadata key 1 of 1, b'ab\xff\n', is not UTF-8"),
    "duplicate key": (gguf([key("a", U32, u32(1))] * 2), "metadata key 'a' is there twice"),
    "key type": (gguf([key("a", 13, bytes(8))]), "metadata key 'a' has the unknown value type 13"),
    "huge key type": (gguf([key("a", 2**32 - 1, bytes(8))]), "unknown value type 4294967295"),
    "bool": (gguf([key("a", BOOL, b"\2")]), "metadata key 'a' is 2, and a bool is 0 or 1"),
    "bools": (gguf([key("a", ARRAY, array(BOOL, 3, b"\0\1\xff"))]), "metadata key 'a' has an element that is neither"),
    "string": (gguf([key("a", STRING, u64(9) + bytes(8))]), "metadata key 'a' would end at byte"),
    "huge string": (gguf([key("a", STRING, u64(2**64 - 1))]), "metadata key 'a' would end at byte"),
    "elements": (gguf([key("a", ARRAY, array(U32, 3, bytes(11)))]), "the number of elements of metadata key 'a' is 3"),
    "many elements": (gguf([key("a", ARRAY, array(U8, HUGE))]), f"elements of metadata key 'a' is {HUGE}, but only 0"),
    "many strings": (gguf([key("a", ARRAY, array(STRING, 2**61))]), "elements of metadata key 'a' is 23058430092136"),
    "many arrays": (gguf([key("a", ARRAY, array(ARRAY, 2**62))]), "elements of metadata key 'a' is 46116860184273"),
    "string in an array": (
        gguf([key("a", ARRAY, array(STRING, 2, text("b") + u64(HUGE)))]),
        "a string of metadata key 'a' would end at byte",
    ),
    "first string in an array": (
        gguf([key("a", ARRAY, array(STRING, 2, u64(2**64 - 1) + text("b")))]),
        "a string of metadata key 'a' would end at byte",
    ),
    "element type": (gguf([key("a", ARRAY, array(13, 1, bytes(8)))]), "an element of metadata key 'a' has the unknown"),
    "elements in an array": (
        gguf([key("a", ARRAY, array(ARRAY, 1, array(U32, HUGE)))]),
        f"elements of metadata key 'a' is {HUGE}",
    ),
    "deep array": (gguf([key("a", ARRAY, nested(5))]), "metadata key 'a' nests arrays over 4 deep"),
    "very deep array": (gguf([key("a", ARRAY, nested(900))]), "metadata key 'a' nests arrays over 4 deep"),
    "alignment 0": (gguf([alignment(0)]), "'general.alignment' is 0, where a power of two"),
    "alignment 48": (gguf([alignment(48)]), "'general.alignment' is 48, where a power of two"),
    "huge alignment": (gguf([alignment(2**31)]), "'general.alignment' is 2147483648, where a power of two"),
    "alignment of another type": (gguf([key("general.alignment", 10, u64(32))]), "is uint64, where uint32 is needed"),
    "alignments": (gguf([key("general.alignment", ARRAY, array(U32, 1, u32(32)))]), "is array, where uint32 is needed"),
    "alignment past the end": (gguf([alignment(4096)], [row()], DATA), "the data of tensor 't' would end at byte 4128"),
    "length of a name": (gguf(rows=[u64(HUGE) + bytes(40)]), f"the name of tensor 1 of 1 has {HUGE} bytes"),
    "name not UTF-8": (gguf(rows=[row(b"\xed\xa0\x80")], data=DATA), "the name of tensor 1 of 1, b'"),
    "duplicate tensor": (gguf(rows=[row(), row(offset=32)], data=DATA), "tensor 't' is there twice"),
    "no dimensions": (gguf(rows=[row(dims=())], data=DATA), "tensor 't' has 0 dimensions, and 1 to 4 are allowed"),
    "five dimensions": (gguf(rows=[row(dims=(1,) * 5)], data=DATA), "tensor 't' has 5 dimensions, and at most 4"),
    "many dimensions": (gguf(rows=[row(count=2**32 - 1)], data=DATA), "tensor 't' has 4294967295 dimensions"),
    "empty dimension": (gguf(rows=[row(dims=(8, 0))], data=DATA), "tensor 't' has the shape (0, 8), and a dim"),
    "overflowing shape": (gguf(rows=[row(dims=(2**32, 2**31))], data=DATA), "(2147483648, 4294967296), of over 2^63"),
    "wrapping shape": (gguf(rows=[row(dims=(2**32, 2**32, 2))], data=DATA), "of over 2^63 elements"),
    "row of half a block": (gguf(rows=[row(dims=(48,), code=2)], data=DATA), "rows of 48 elements, no multiple of"),
    "tensor type": (gguf(rows=[row(code=4096)], data=DATA), "tensor 't': tensor type 4096 is unknown"),
    "withdrawn tensor type": (gguf(rows=[row(code=4)], data=DATA), "tensor 't': tensor type Q4_2"),
    "misaligned": (gguf(rows=[row(offset=16)], data=DATA), "offset 16, no multiple of the alignment 32"),
    "data outside": (gguf(rows=[row(offset=64)], data=DATA), "the data of tensor 't' would end at byte"),
    "data far outside": (gguf(rows=[row(offset=2**64 - 32)], data=DATA), "the data of tensor 't' would end at byte"),
    "data partly outside": (gguf(rows=[row(dims=(17,))], data=DATA), "the data of tensor 't' would end at byte"),
    "no data": (gguf(rows=[row()]), "the data of tensor 't' would end at byte"),
    "same data": (gguf(rows=[row("a"), row("b")], data=DATA), "tensors 'a' and 'b' overlap"),
    "overlap": (gguf(rows=[row("a", (9,)), row("b", offset=32)], data=DATA), "tensors 'a' and 'b' overlap"),
    "overlap in any order": (
        gguf(rows=[row("a", offset=32), row("b", offset=64), row("c", (16,))], data=bytes(128)),
        "tensors 'c' and 'a' overlap",
    ),
}  # fmt: skip


def refusal(path: Path, *, mmap: bool = True) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(FormatError) as error:
        GGUFFile.open(path, mmap=mmap)
    line = str(error.value)
    assert line.startswith(f"{path}: ")
    assert line.isprintable()
    assert len(line) < len(str(path)) + 300
    return line


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "plain"])
@pytest.mark.parametrize(("raw", "message"), FAULTS.values(), ids=FAULTS)
def test_fault(tmp_path: Path, raw: bytes, message: str, mmap: bool) -> None:
    """Each fault is a FormatError of one line with file and field, without memory for what the file claims."""
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    line = refusal(path, mmap=mmap)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message in line
    assert peak < (1 << 20) + 8 * len(raw)


def test_neighbours_of_the_faults_are_sound(tmp_path: Path) -> None:
    """What the faults are made of is refused for the fault alone."""
    path = tmp_path / "m.gguf"
    for raw in (
        gguf(version=2),
        gguf([key("k" * 65535, U8, b"x")]),
        gguf([key("a", BOOL, b"\1"), key("b", ARRAY, array(BOOL, 2, b"\0\1"))]),
        gguf([key("a", ARRAY, nested(4)), key("b", ARRAY, array(STRING, 2, text("b") + text("")))]),
        gguf([alignment(1 << 24)]),
        gguf([alignment(1)], [row("", dims=(4, 1, 1, 1))], bytes(16), alignment=1),
        gguf(rows=[row("a", offset=32), row("b", (8,))], data=DATA),
        gguf(rows=[row(dims=(64,), code=2)], data=DATA),
    ):
        path.write_bytes(raw)
        read_all(path)


def test_lfs_pointer_says_what_to_do(tmp_path: Path) -> None:
    """A Git LFS pointer is called so, and how to get the model is said."""
    path = tmp_path / "m.gguf"
    path.write_bytes(FAULTS["Git LFS pointer"][0])
    assert refusal(path).endswith(
        "this is a Git LFS pointer, not the model itself; fetch the model with `git lfs pull`"
    )


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_truncation_at_every_byte(tmp_path: Path, byteorder: Any) -> None:
    """A file cut short anywhere is refused."""
    whole = write_sample(tmp_path / "whole.gguf", byteorder=byteorder).read_bytes()
    path = tmp_path / "m.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            GGUFFile.open(path, mmap=False)
    path.write_bytes(whole)
    read_all(path)


def test_hostile_text_stays_on_the_line(tmp_path: Path) -> None:
    """Control characters in a key neither break the line nor reach the terminal, and a long key is cut."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([key("a\n\x1b[31m\u2028" + "b" * 60000, 99, b"")], key_count=1))
    assert r"'a\n\x1b[31m\u2028bbb" in refusal(path)


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is said to be missing."""
    assert refusal(tmp_path / "m.gguf").endswith(
        "cannot read the file: No such file or directory; check the path"
    )


def test_folder(tmp_path: Path) -> None:
    """A folder is called one."""
    assert "this is a folder; give the .gguf file in it" in refusal(tmp_path)


def test_file_as_a_folder(tmp_path: Path) -> None:
    """A path that goes through a file is refused."""
    (tmp_path / "file").write_bytes(b"")
    assert "cannot read the file" in refusal(tmp_path / "file" / "m.gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipe(tmp_path: Path) -> None:
    """A pipe is refused, not waited for."""
    os.mkfifo(tmp_path / "m.gguf")
    assert "a device or a pipe" in refusal(tmp_path / "m.gguf")


def test_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may not be read is refused with the reason."""
    path = write_sample(tmp_path / "m.gguf")

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)  # root may read every file
    assert refusal(path).endswith("cannot read the file: Permission denied; make the file readable for you")


def test_null_in_a_path() -> None:
    """A path that no system takes is an error like any other."""
    with pytest.raises(FormatError, match="cannot read the file"):
        GGUFFile.open("a\0b.gguf")


def test_header_is_bounded(tmp_path: Path) -> None:
    """A large file cannot have itself read into memory by a long string."""
    path = tmp_path / "m.gguf"
    write(path, {"a": "b"}, [])
    raw = path.read_bytes().replace(u64(1) + b"b", u64(3 << 29))
    with path.open("wb") as out:
        out.write(raw)
        out.truncate(2 << 30)
    assert "a header of over 1073741824 bytes is refused" in refusal(path)
