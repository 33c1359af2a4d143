"""Where tensor data come from: a memory mapping, or reads of the open file."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from puna.errors import FormatError

__all__ = ["Mapped", "Plain", "Source", "open_file", "unreadable"]

BLOCK = 4096  # bytes that reads past the file cache are made of; no disk has larger ones
LARGE = 1 << 20  # bytes from which on such a read is worth it
FIXES: dict[type[Exception], str] = {
    FileNotFoundError: "check the path",
    PermissionError: "make the file readable for you",
}


class Source(Protocol):
    """Bytes of one file. A source owns the open file that it is made from."""

    def read(self, offset: int, nbytes: int, room: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """uint8 [nbytes], read-only. The range was checked against the file's size.

        room: memory at a page to read into, where something is read and it is large enough: whole blocks of 4 KiB.
        """

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
                f"cannot map the file into memory: {error}",
                where=where,
                fix="turn memory mapping off (--no-mmap)",
            ) from None
        file.close()

    def read(self, offset: int, nbytes: int, room: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
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
    """Copies, read when they are asked for.

    What is not in the system's file cache comes past it, where the system can: it need not be held twice for a while,
    and pushes nothing out of the cache.
    """

    def __init__(self, file: BufferedReader, where: str) -> None:
        self._file, self._where = file, where
        self._lock = Lock()  # the file has one position for all threads
        self._direct = open_direct(file)

    def read(self, offset: int, nbytes: int, room: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        first = offset // BLOCK * BLOCK
        span = -(-(offset + nbytes - first) // BLOCK) * BLOCK
        try:
            memory = pages(span) if room is None or len(room) < span else room[:span]
            data = memory[offset - first :][:nbytes]
            with self._lock:
                done = max(0, self._past_cache(memory, first) - (offset - first))
                if done < nbytes:
                    self._file.seek(offset + done)
                    done += self._file.readinto(data[done:].data)
        except OSError as error:
            raise unreadable(error, self._where) from None
        if done < nbytes:
            raise FormatError(
                "the file became shorter while it was open", where=self._where, fix="open it again"
            )
        data.setflags(write=False)
        return data

    def _past_cache(self, memory: NDArray[np.uint8], first: int) -> int:
        """Fill memory, both at whole blocks, from `first` on; the bytes that came, none where it is not worth it."""
        done = 0
        if self._direct is None or len(memory) < LARGE or is_cached(self._file.fileno(), first):
            return done
        # What does not come this way is read the usual one, which reports what is wrong.
        with suppress(OSError):
            while done < len(memory):
                came = os.preadv(self._direct.fileno(), [memory[done:].data], first + done)
                done += came
                if came == 0 or came % BLOCK:  # the end of the file
                    break
        return done

    def drop(self, offset: int, nbytes: int) -> None:
        pass  # the reader has the only copy

    def close(self) -> None:
        self._file.close()
        if self._direct is not None:
            self._direct.close()


def pages(nbytes: int) -> NDArray[np.uint8]:
    """Memory that begins at a page, and goes back to the system with the last view of it."""
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8) if nbytes else np.zeros(0, np.uint8)


def open_direct(file: BufferedReader) -> FileIO | None:
    """The same file once more, for reads past the file cache; None where the system or the disk has none."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(file.fileno(), fcntl.F_NOCACHE, 1)  # there it is a property of the usual reads
    if not hasattr(os, "O_DIRECT") or not hasattr(os, "RWF_NOWAIT"):
        return None
    try:
        return FileIO(os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC))
    except OSError:
        return None


def is_cached(descriptor: int, offset: int) -> bool:
    """Whether what lies at an offset of a file can be had without waiting for the disk; True where that is unknown."""
    try:
        return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    except OSError:
        return True


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
