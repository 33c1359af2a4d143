"""The front of a GGUF file: magic, version, counts, metadata, tensor table.

    "GGUF" | u32 version | u64 tensors | u64 keys
    keys:    string key | u32 type | value
    tensors: string name | u32 dimensions | u64 each, fastest first | u32 type | u64 offset in the data
    zeros up to the alignment, then the data

A string is a u64 length and its bytes. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import BinaryIO, Literal

from puna.errors import FormatError
from puna.gguf.cursor import Cursor, quoted
from puna.gguf.metadata import Metadata
from puna.gguf.tensors import MAX_DIMENSIONS, TensorInfo, shape_fault, tensor_bytes
from puna.gguf.values import Encoded, Value, ValueType
from puna.quants import by_id

__all__ = [
    "ALIGNMENT_KEY",
    "DEFAULT_ALIGNMENT",
    "MAGIC",
    "ORDERS",
    "VERSIONS",
    "ByteOrder",
    "Header",
    "alignment_fault",
    "padding",
    "read_header",
]

ByteOrder = Literal["little", "big"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ORDERS: dict[ByteOrder, str] = {"little": "<", "big": ">"}
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 24
LEAST_KEY, LEAST_TENSOR = 8 + 1 + 4 + 1, 8 + 4 + 8 + 4 + 8  # bytes

# What else a file may be, by how it begins.
STRANGERS = {
    b"version https://git-lfs": (
        "a Git LFS pointer, not the model itself",
        "fetch the model with `git lfs pull`",
    ),
    b"<": ("a web page, not a model", "download the file itself"),
    b"PK\x03\x04": ("a zip or PyTorch file, not GGUF", "convert the model to GGUF"),
    b"tjgg": ("a GGML file from before GGUF", "convert the model to GGUF"),
    b"fmgg": ("a GGML file from before GGUF", "convert the model to GGUF"),
    b"lmgg": ("a GGML file from before GGUF", "convert the model to GGUF"),
}


@dataclass(frozen=True)
class Header:
    """What the front of one file says. size: bytes of the whole file."""

    version: int
    byteorder: ByteOrder
    alignment: int
    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    size: int


def read_header(file: BinaryIO, size: int, where: str) -> Header:
    """Read and check the header of an open file of `size` bytes, which errors call `where`.

    Raises FormatError for all that the format does not allow, and for tensors that overlap or leave the file.
    """
    cursor = Cursor(file, size, where)
    read_magic(cursor)
    version, byteorder = read_version(cursor)
    tensor_count = cursor.count(LEAST_TENSOR, "tensors")
    key_count = cursor.count(LEAST_KEY, "metadata keys")
    metadata = read_metadata(cursor, key_count)
    alignment = read_alignment(cursor, metadata)
    tensors = read_tensors(cursor, tensor_count, alignment)
    check_layout(cursor, tensors)
    return Header(version, byteorder, alignment, metadata, tensors, size)


def read_magic(cursor: Cursor) -> None:
    if cursor.size == 0:
        raise cursor.error("the file is empty")
    start = cursor.peek(24)
    for beginning, (what, fix) in STRANGERS.items():
        if start.startswith(beginning):
            raise cursor.error(f"this is {what}", fix)
    if not start.startswith(MAGIC):
        raise cursor.error(f"this is no GGUF file: it begins with {start[:4]!r}", "give a .gguf file")
    cursor.position = len(MAGIC)


def read_version(cursor: Cursor) -> tuple[int, ByteOrder]:
    """The version, read in the byte order in which it is a small number."""
    raw = cursor.peek(4)
    cursor.uint32("the version")
    numbers = {order: int.from_bytes(raw, order) for order in ORDERS}
    for order, number in numbers.items():
        if number in VERSIONS:
            cursor.order = ORDERS[order]
            return number, order
    number = min(numbers.values())
    raise cursor.error(f"GGUF version {number} is not 2 or 3", "convert the model again, or update Puna")


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    entries: dict[str, Value | Encoded] = {}
    for index in range(count):
        key = cursor.name(f"metadata key {index + 1} of {count}")
        if not key:
            raise cursor.error(f"metadata key {index + 1} of {count} is empty")
        if key in entries:
            raise cursor.error(f"metadata key {quoted(key)} is there twice")
        entries[key] = cursor.value(f"metadata key {quoted(key)}")
    return Metadata(entries, cursor.where)


def read_alignment(cursor: Cursor, metadata: Metadata) -> int:
    if ALIGNMENT_KEY not in metadata:
        return DEFAULT_ALIGNMENT
    kind = metadata.type_of(ALIGNMENT_KEY)
    if kind is not ValueType.UINT32:
        raise cursor.error(f"metadata key {ALIGNMENT_KEY!r} is {kind.label}, where uint32 is needed")
    alignment = metadata.integer(ALIGNMENT_KEY)
    if fault := alignment_fault(alignment):
        raise cursor.error(f"metadata key {ALIGNMENT_KEY!r} {fault}")
    return alignment


def alignment_fault(alignment: int) -> str | None:
    """Why data cannot be aligned so, or None where it can."""
    if 0 < alignment <= MAX_ALIGNMENT and alignment & (alignment - 1) == 0:
        return None
    return f"is {alignment}, where a power of two up to {MAX_ALIGNMENT} is needed"


def read_tensors(cursor: Cursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    """The tensor table. The data begin at the first multiple of the alignment behind it."""
    found = {}
    for index in range(count):
        name = cursor.name(f"the name of tensor {index + 1} of {count}")
        if name in found:
            raise cursor.error(f"tensor {quoted(name)} is there twice")
        found[name] = read_tensor(cursor, name, alignment)
    start = cursor.position + padding(cursor.position, alignment)
    return tuple(replace(tensor, offset=start + tensor.offset) for tensor in found.values())


def read_tensor(cursor: Cursor, name: str, alignment: int) -> TensorInfo:
    """One row of the table; the offset counts from the start of the data."""
    what = f"tensor {quoted(name)}"
    dimensions = cursor.uint32(f"the number of dimensions of {what}")
    if dimensions > MAX_DIMENSIONS:
        raise cursor.error(f"{what} has {dimensions} dimensions, and at most {MAX_DIMENSIONS} are allowed")
    shape = tuple(cursor.uint64(f"a dimension of {what}") for _ in range(dimensions))[::-1]
    code = cursor.uint32(f"the type of {what}")
    offset = cursor.uint64(f"the offset of {what}")
    try:
        quant = by_id(code)
    except FormatError as error:
        raise FormatError(f"{what}: {error.what}", where=cursor.where, fix=error.fix) from None
    if fault := shape_fault(quant, shape):
        raise cursor.error(f"{what} {fault}")
    if offset % alignment:
        raise cursor.error(f"{what} has the offset {offset}, no multiple of the alignment {alignment}")
    return TensorInfo(name, quant, shape, offset, tensor_bytes(quant, shape))


def check_layout(cursor: Cursor, tensors: Sequence[TensorInfo]) -> None:
    """Every tensor lies inside the file and none on another's bytes."""
    by_offset = sorted(tensors, key=lambda tensor: tensor.offset)
    for tensor in by_offset:
        cursor.check_end(tensor.offset + tensor.nbytes, f"the data of tensor {quoted(tensor.name)}")
    for first, second in pairwise(by_offset):
        if first.offset + first.nbytes > second.offset:
            raise cursor.error(f"tensors {quoted(first.name)} and {quoted(second.name)} overlap")


def padding(position: int, alignment: int) -> int:
    """Bytes up to the next multiple of the alignment."""
    return -position % alignment
