"""A header read front to back: each count and length is checked against the file's size before it is used."""

from __future__ import annotations

from struct import Struct
from typing import Any, BinaryIO

import numpy as np

from puna.errors import FormatError
from puna.gguf.values import LEAST_BYTES, MAX_DEPTH, MAX_NAME, NUMBERS, Encoded, Value, ValueType

__all__ = ["Cursor", "quoted"]

REFETCH = "make or download the file again"
MAX_HEADER = 1 << 30  # the largest vocabularies take 20 MB
MIN_READ, MAX_READ = 1 << 16, 1 << 20


def quoted(name: str) -> str:
    """A name out of a file, cut to a length that suits a message."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


class Cursor:
    """Reads fields from an open file. The file is read as the fields need it, at most 1 MiB ahead.

    Every method takes what it reads in words, for its error: a FormatError that names the file and the field.
    """

    def __init__(self, file: BinaryIO, size: int, where: str) -> None:
        self.file, self.size, self.where = file, size, where
        self.order = "<"
        self.position = 0
        self.buffer = bytearray()

    def error(self, what: str, fix: str = REFETCH) -> FormatError:
        return FormatError(what, where=self.where, fix=fix)

    def reach(self, end: int, what: str) -> None:
        """Have the file up to byte `end` in the buffer."""
        have = len(self.buffer)
        if end <= have:
            return
        self.check_end(end, what)
        if end > MAX_HEADER:
            raise self.error(f"{what} ends at byte {end}, and a header of over {MAX_HEADER} bytes is refused")
        ahead = have + min(max(have, MIN_READ), MAX_READ)
        self.buffer += self.file.read(min(max(end, ahead), self.size) - have)
        if len(self.buffer) < end:
            raise self.error(f"the file became shorter while {what} was read")

    def check_end(self, end: int, what: str) -> None:
        """Refuse what would end behind the file."""
        if end > self.size:
            raise self.error(f"{what} would end at byte {end}, but the file ends at byte {self.size}")

    def peek(self, nbytes: int) -> bytes:
        """The next bytes, or the fewer that are left."""
        end = min(self.position + nbytes, self.size)
        self.reach(end, "the start")
        return bytes(self.buffer[self.position : end])

    def number(self, kind: ValueType, what: str) -> Any:
        layout = Struct(self.order + NUMBERS[kind])
        start, end = self.position, self.position + layout.size
        self.reach(end, what)
        self.position = end
        if kind is ValueType.BOOL and self.buffer[start] > 1:
            raise self.error(f"{what} is {self.buffer[start]}, and a bool is 0 or 1")
        return layout.unpack_from(self.buffer, start)[0]

    def uint32(self, what: str) -> int:
        return int(self.number(ValueType.UINT32, what))

    def uint64(self, what: str) -> int:
        return int(self.number(ValueType.UINT64, what))

    def count(self, least: int, what: str) -> int:
        """A count of things that take at least `least` bytes each."""
        count = self.uint64(f"the number of {what}")
        left = self.size - self.position
        if count * least > left:
            raise self.error(f"the number of {what} is {count}, but only {left} bytes follow")
        return count

    def raw_string(self, what: str, limit: int | None = None) -> bytes:
        length = self.uint64(f"the length of {what}")
        if limit is not None and length > limit:
            raise self.error(f"{what} has {length} bytes, and {limit} are allowed")
        start, end = self.position, self.position + length
        self.reach(end, what)
        self.position = end
        return bytes(self.buffer[start:end])

    def name(self, what: str) -> str:
        """A key or tensor name: UTF-8 without exceptions."""
        raw = self.raw_string(what, MAX_NAME)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what}, {raw[:80]!r}, is not UTF-8 from its byte {error.start} on") from None

    def type(self, what: str) -> ValueType:
        code = self.uint32(f"the type of {what}")
        try:
            return ValueType(code)
        except ValueError:
            raise self.error(f"{what} has the unknown value type {code}") from None

    def value(self, what: str) -> Value | Encoded:
        kind = self.type(what)
        if kind is ValueType.ARRAY:
            return self.array(what)
        if kind is ValueType.STRING:
            return Value(kind, self.raw_string(what).decode("utf-8", "surrogateescape"))
        return Value(kind, self.number(kind, what))

    def array(self, what: str) -> Encoded:
        kind, count = self.array_head(what)
        start = self.position
        self.skip_elements(kind, count, what, MAX_DEPTH)
        with memoryview(self.buffer) as view:
            raw = bytes(view[start : self.position])
        return Encoded(kind, count, raw, self.order)

    def array_head(self, what: str) -> tuple[ValueType, int]:
        kind = self.type(f"an element of {what}")
        return kind, self.count(LEAST_BYTES[kind], f"elements of {what}")

    def skip_elements(self, kind: ValueType, count: int, what: str, depth: int) -> None:
        """Check an array's elements and pass over them."""
        if kind is ValueType.STRING:
            self.skip_strings(count, what)
        elif kind is ValueType.ARRAY:
            self.skip_arrays(count, what, depth - 1)
        else:
            start, self.position = self.position, self.position + count * LEAST_BYTES[kind]
            self.reach(self.position, what)
            if kind is ValueType.BOOL and np.any(np.frombuffer(self.buffer, np.uint8, count, start) > 1):
                raise self.error(f"{what} has an element that is neither 0 nor 1, and a bool is one of these")

    def skip_arrays(self, count: int, what: str, depth: int) -> None:
        if count and depth == 0:
            raise self.error(f"{what} nests arrays over {MAX_DEPTH} deep")
        for _ in range(count):
            kind, length = self.array_head(what)
            self.skip_elements(kind, length, what, depth)

    def skip_strings(self, count: int, what: str) -> None:
        # Tight, since vocabularies have 300,000 strings: one comparison a string. A hostile length only moves
        # `position` on, where the next string or the last line refuses it.
        length = Struct(self.order + "Q").unpack_from
        buffer, position, last = self.buffer, self.position, len(self.buffer) - 8
        for _ in range(count):
            if position > last:
                self.reach(position + 8, f"a string of {what}")
                last = len(buffer) - 8
            position += 8 + length(buffer, position)[0]
        self.reach(position, f"a string of {what}")
        self.position = position
