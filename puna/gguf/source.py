"""Where tensor data come from: a memory mapping, or reads of the open file."""

from __future__ import annotations

import mmap
import os
import stat
from io import BufferedReader
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from puna.errors import FormatError

__all__ = ["Mapped", "Plain", "Source", "open_file", "unreadable"]

FIXES: dict[type[Exception], str] = {
    FileNotFoundError: "check the path",
    PermissionError: "make the file readable for you",
}


class Source(Protocol):
    """Bytes of one file. A source owns the open file that it is made from."""

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """uint8 [nbytes], read-only. The range was checked against the file's size."""

    def drop(self, offset: int, nbytes: int) -> None:
        """The range will not be read again soon: give its memory back, where there is any to give."""

    def close(self) -> None: ...


class Mapped:
    """Views of a memory mapping: nothing is read before it is used, and nothing is copied."""

    def __init__(self, file: BufferedReader, where: str) -> None:
        try:
            self._map: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError, OverflowError) as error:
            raise FormatError(
                f"cannot map the file into memory: {error}", where=where, fix="turn memory mapping off"
            ) from None
        file.close()

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        assert self._map is not None
        return np.frombuffer(self._map, np.uint8, nbytes, offset)

    def drop(self, offset: int, nbytes: int) -> None:
        page = mmap.PAGESIZE
        first, last = -(-offset // page) * page, (offset + nbytes) // page * page
        if self._map is not None and last > first and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        # Views that are alive hold the mapping, and the last one to go unmaps it.
        self._map = None


class Plain:
    """Copies, read when they are asked for."""

    def __init__(self, file: BufferedReader, where: str) -> None:
        self._file, self._where = file, where
        self._lock = Lock()  # the file has one position for all threads

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        data = np.empty(nbytes, np.uint8)
        try:
            with self._lock:
                self._file.seek(offset)
                done = self._file.readinto(data.data)
        except OSError as error:
            raise unreadable(error, self._where) from None
        if done != nbytes:
            raise FormatError(
                "the file became shorter while it was open", where=self._where, fix="open it again"
            )
        data.setflags(write=False)
        return data

    def drop(self, offset: int, nbytes: int) -> None:
        pass  # the reader has the only copy

    def close(self) -> None:
        self._file.close()


def open_file(path: Path) -> tuple[BufferedReader, int]:
    """An open regular file and its size in bytes. Raises FormatError where there is none to read."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise FormatError("this is a folder", where=str(path), fix="give the .gguf file in it")
        if not stat.S_ISREG(mode):  # opening a pipe would wait for its other end
            raise FormatError("this is a device or a pipe", where=str(path), fix="give a regular file")
        file = path.open("rb")
        return file, os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise unreadable(error, str(path)) from None


def unreadable(error: OSError | ValueError, where: str) -> FormatError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return FormatError(f"cannot read the file: {reason}", where=where, fix=FIXES.get(type(error)))
