"""Write a GGUF file: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.errors import RequestError
from puna.gguf.cursor import quoted
from puna.gguf.exact import exact
from puna.gguf.header import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    ORDERS,
    VERSIONS,
    ByteOrder,
    alignment_fault,
    padding,
)
from puna.gguf.metadata import Metadata
from puna.gguf.output import replacing
from puna.gguf.tensors import shape_fault, tensor_bytes
from puna.gguf.values import MAX_NAME, NUMBERS, Value, ValueType
from puna.quants import QuantType, byteswapped

__all__ = ["header_bytes", "replacing", "write"]

Raw = NDArray[np.uint8]
Data = Raw | Callable[[], Raw | Iterator[Raw]]


@dataclass(frozen=True)
class Tensor:
    """A tensor to write. data: its bytes, little-endian, or a function that gives them, at once or in pieces."""

    name: str
    quant: QuantType
    shape: Sequence[int]
    data: Data

    @property
    def nbytes(self) -> int:
        return tensor_bytes(self.quant, self.shape)


def write(
    path: str | Path,
    metadata: Mapping[str, Any],
    tensors: Iterable[tuple[str, QuantType, Sequence[int], Data]],
    *,
    version: int = 3,
    byteorder: ByteOrder = "little",
    alignment: int | None = None,
) -> None:
    """Write a GGUF file beside `path` under another name, then move it there: `path` never has half a file.

    metadata: Python or NumPy values, `Value`s of an exact type, or a file's `Metadata`, all types kept.
    tensors: name, type, shape in NumPy's order, and the bytes: uint8, little-endian whatever `byteorder` is;
    or a function that gives the bytes, called once, so that only one tensor is in memory; or an iterator over
    them in pieces of whole blocks, so that only a piece is.
    alignment: of the data, in bytes; None takes `general.alignment` from the metadata, else 32.
    Raises RequestError for what GGUF cannot hold, and where the file cannot be written.
    """
    path = Path(path)
    where = str(path)
    table = checked([Tensor(*tensor) for tensor in tensors], where)
    values, alignment = aligned(checked_values(metadata, where), alignment, where)
    if version not in VERSIONS or byteorder not in ORDERS:
        raise RequestError(f"cannot write GGUF version {version}, {byteorder}-endian", where=where)
    header = encoded_header(values, table, version, ORDERS[byteorder], alignment)
    with replacing(path, file_bytes(header, table, alignment)) as file:
        file.write(header)
        for tensor in table:
            file.write(bytes(padding(file.tell(), alignment)))
            for piece in tensor_pieces(tensor, byteorder, where):
                file.write(piece.data)
        if table:
            file.write(bytes(padding(file.tell(), alignment)))


def file_bytes(header: bytes, table: Sequence[Tensor], alignment: int) -> int:
    """Bytes of the whole file."""
    padded = sum(tensor.nbytes + padding(tensor.nbytes, alignment) for tensor in table)
    return len(header) + (padding(len(header), alignment) if table else 0) + padded


def checked(table: list[Tensor], where: str) -> list[Tensor]:
    """Raise RequestError unless the reader will take every row of the tensor table."""
    seen: set[str] = set()
    for tensor in table:
        what = f"tensor {quoted(tensor.name)}"
        fault = name_fault(tensor.name) or shape_fault(tensor.quant, tensor.shape)
        if fault or tensor.name in seen:
            raise RequestError(f"{what} {fault or 'is there twice'}", where=where)
        seen.add(tensor.name)
    return table


def checked_values(metadata: Mapping[str, Any], where: str) -> dict[str, Value]:
    """Every value with its exact type."""
    get = metadata.typed if isinstance(metadata, Metadata) else metadata.__getitem__
    values = {}
    for key in metadata:
        fault = name_fault(key) if key else "is empty"
        if fault:
            raise RequestError(f"metadata key {quoted(key)} {fault}", where=where)
        try:
            values[key] = exact(get(key))
        except ValueError as error:
            raise RequestError(f"metadata key {quoted(key)}: {error}", where=where) from None
    return values


def name_fault(name: str) -> str | None:
    try:
        length = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return "is not Unicode text"
    return f"has {length} bytes, and {MAX_NAME} are allowed" if length > MAX_NAME else None


def aligned(values: dict[str, Value], alignment: int | None, where: str) -> tuple[dict[str, Value], int]:
    """The metadata and the alignment in agreement: the key is there unless the alignment is the default."""
    held = values.get(ALIGNMENT_KEY)
    if held is not None and (held.is_array or held.type is not ValueType.UINT32):
        raise RequestError(f"metadata key {ALIGNMENT_KEY!r} is no uint32", where=where)
    if held is not None and alignment not in (None, held.value):
        raise RequestError(f"alignment {alignment} differs from {ALIGNMENT_KEY!r}, {held.value}", where=where)
    if alignment is None:
        alignment = DEFAULT_ALIGNMENT if held is None else int(held.value)
    if fault := alignment_fault(alignment):
        raise RequestError(f"the alignment {fault}", where=where)
    if held is None and alignment != DEFAULT_ALIGNMENT:
        values = {**values, ALIGNMENT_KEY: Value(ValueType.UINT32, alignment)}
    return values, alignment


def header_bytes(metadata: Mapping[str, Any], where: str = "metadata") -> int:
    """Bytes of the header of a file without tensors. Raises RequestError for what GGUF cannot hold."""
    return len(encoded_header(checked_values(metadata, where), [], VERSIONS[-1], ORDERS["little"], 1))


def encoded_header(
    values: dict[str, Value], table: Sequence[Tensor], version: int, order: str, alignment: int
) -> bytes:
    """The bytes before the data; see `header.py` for the layout."""
    out = bytearray(MAGIC + pack(order + "IQQ", version, len(table), len(values)))
    for key, value in values.items():
        out += encoded_string(key, order)
        out += encoded_value(value, order)
    offset = 0
    for tensor in table:
        shape = tuple(tensor.shape)[::-1]
        out += encoded_string(tensor.name, order)
        out += pack(f"{order}I{len(shape)}QIQ", len(shape), *shape, tensor.quant.id, offset)
        offset += tensor.nbytes + padding(tensor.nbytes, alignment)
    return bytes(out)


def encoded_string(text: str, order: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return pack(order + "Q", len(raw)) + raw


def encoded_value(value: Value, order: str) -> bytes:
    if value.is_array:
        return pack(order + "I", ValueType.ARRAY) + encoded_array(value, order)
    head = pack(order + "I", value.type)
    if value.type is ValueType.STRING:
        return head + encoded_string(value.value, order)
    return head + pack(order + NUMBERS[value.type], value.value)


def encoded_array(value: Value, order: str) -> bytes:
    head = pack(order + "IQ", value.type, len(value.value))
    if value.type is ValueType.STRING:
        return head + b"".join([encoded_string(text, order) for text in value.value])
    if value.type is ValueType.ARRAY:
        return head + b"".join([encoded_array(item, order) for item in value.value])
    return head + bytes(value.value.astype(order + NUMBERS[value.type]).data)


def tensor_pieces(tensor: Tensor, byteorder: ByteOrder, where: str) -> Iterator[Raw]:
    """The bytes as they go into the file, one or more pieces of uint8 [n]."""
    given = tensor.data() if callable(tensor.data) else tensor.data
    size = 0
    for raw in [given] if isinstance(given, np.ndarray) else given:
        size += raw.size
        if raw.dtype != np.uint8 or size > tensor.nbytes:
            raise wrong_data(tensor, f"{size} elements of {raw.dtype}", where)
        piece = np.ascontiguousarray(raw).reshape(-1)
        yield byteswapped(tensor.quant, piece) if byteorder == "big" else piece
    if size != tensor.nbytes:
        raise wrong_data(tensor, f"{size} elements of uint8", where)


def wrong_data(tensor: Tensor, held: str, where: str) -> RequestError:
    what = f"tensor {quoted(tensor.name)} comes as {held}"
    return RequestError(what, where=where, fix=f"give {tensor.nbytes} of uint8")
