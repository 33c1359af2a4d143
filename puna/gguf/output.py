"""Files that are written: where one may be, and how it takes its place when all of it is there.

Until then it lies beside its place as `.NAME.<8 hex digits>.part` (a folder: `.parts`), locked by whoever writes it, so
that what a killed process left can be told from what is being written.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path

from puna.errors import RequestError
from puna.units import human

__all__ = ["cannot_write", "check_room", "clear_left", "free_target", "lock", "partial_path", "replacing"]

LONGEST = 230  # bytes of a file's name that leave room for what is put around it
ROOM = "free some space, or write to another disk"
FIXES: Mapping[int, str] = {
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EFBIG: "raise the limit of a file's size (ulimit -f), or write to a disk that takes such files",
    errno.EACCES: "write to a folder that is yours",
    errno.EROFS: "write to another disk",
}


def free_target(target: str | Path, sources: Sequence[Path] = ()) -> Path:
    """The path to write to, links followed. Raises RequestError where a file cannot or must not be made.

    sources: files that are read, which nothing may take the place of.
    """
    where = str(target)
    try:
        path = Path(target).resolve()
        if path.is_dir():
            raise RequestError("this is a folder", where=where, fix="name the file to write")
        if path.exists() and not path.is_file():
            raise RequestError("this is a device or a pipe", where=where, fix="name a file to write")
        if any(source.exists() and path.exists() and path.samefile(source) for source in sources):
            raise RequestError("this is the file to read", where=where, fix="write to another file")
        if not path.parent.is_dir():
            raise RequestError("there is no such folder", where=str(path.parent), fix="make it first")
        if not os.access(path.parent, os.W_OK):
            raise RequestError("you may not write to this folder", where=str(path.parent), fix="take another")
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a null character
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"this is no path of a file: {error}", where=repr(where)) from None
    return path


def check_room(path: Path, nbytes: int, fix: str = ROOM) -> None:
    """Raise RequestError unless the disk has room for so many bytes beside what is there."""
    with suppress(OSError):  # some file systems do not tell
        free = shutil.disk_usage(path.resolve().parent).free
        if free < nbytes:
            what = f"{human(nbytes)} are needed and {human(free)} are free"
            raise RequestError(what, where=str(path), fix=fix)


def cannot_write(error: OSError, where: str | Path, what: str = "the file") -> RequestError:
    """What the system says, and what to change."""
    reason = f"cannot write {what}: {error.strerror or error}"
    return RequestError(reason, where=str(where), fix=FIXES.get(error.errno or 0))


def partial_path(path: Path, end: str = "part") -> Path:
    """Where the file lies until it is whole."""
    return path.with_name(f".{stem(path)}.{secrets.token_hex(4)}.{end}")


def stem(path: Path) -> str:
    return path.name if len(os.fsencode(path.name)) <= LONGEST else path.name[: LONGEST // 4]


def lock(descriptor: int, wait: bool = False) -> bool:
    """Whether an open file or folder is now locked by this process, which holds until it is closed."""
    if sys.platform == "win32":
        return True  # an open file cannot be deleted there
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def clear_left(path: Path) -> list[str]:
    """Delete parts of this file whose writers are gone, and return their names."""
    form = re.compile(rf"\.{re.escape(stem(path))}\.[0-9a-f]{{8}}\.parts?")
    try:
        left = [part for part in sorted(path.parent.iterdir()) if form.fullmatch(part.name)]
    except OSError:  # such as a folder that cannot be listed
        return []
    return [part.name for part in left if not part.is_symlink() and cleared(part)]


def cleared(part: Path) -> bool:
    """Whether it was nobody's and is gone."""
    try:
        descriptor = os.open(part, os.O_RDONLY)
    except OSError:
        return False
    try:
        if not lock(descriptor):
            return False
        if part.is_dir():
            shutil.rmtree(part)
        elif sys.platform != "win32":
            part.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


@contextmanager
def replacing(path: Path, nbytes: int = 0) -> Iterator[BufferedWriter]:
    """A new file that takes the place of `path` at the end, unless something fails: then it goes.

    A link stays, and what it leads to is replaced. nbytes: what will be written, if that is known.
    Raises RequestError where a file cannot be there, or cannot be written.
    """
    target = free_target(path)
    check_room(path, nbytes)
    temporary = partial_path(target)
    try:
        with opened(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise cannot_write(error, path) from None
    finally:
        with suppress(OSError):  # it is gone after a success
            temporary.unlink()


def opened(path: Path) -> BufferedWriter:
    """A new file, locked: made again where another process took it for one that was left, before it was."""
    while True:
        file = path.open("xb")
        lock(file.fileno(), wait=True)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()
