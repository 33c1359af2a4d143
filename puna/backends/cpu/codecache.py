"""Object code on disk, so that a kernel is compiled once on a machine.

One file a kernel, named by the hash of all that decides its bytes. Files are written beside their place and
moved there, readable by their owner alone: a magic line, the SHA-256 of key and rest, a line of JSON with the kernel's
name and processor, the object code. A damaged one is ignored, and so is one under another's name.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

__all__ = ["CodeCache", "Entry", "default_folder"]

MAGIC = b"puna code 2\n"
MOST = 4096  # files, above which those that were made first go
HEAD = len(MAGIC) + hashlib.sha256().digest_size


@dataclass(frozen=True)
class Entry:
    """A kernel in the cache. bytes: of its object code."""

    key: str
    name: str
    cpu: str
    bytes: int
    made: datetime


class CodeCache:
    """A folder of object files. It may be shared by processes, emptied, or unwritable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.o"

    def load(self, key: str) -> bytes | None:
        """The object code stored under a key, or None where there is none that is sound and ours."""
        stored = self.read(self.path(key))
        return None if stored is None else stored.partition(b"\n")[2]

    def read(self, path: Path) -> bytes | None:
        """A file's line of JSON and object code, or None where it is not sound or not ours."""
        try:
            with open(path, "rb", opener=at_once) as file:
                about = os.fstat(file.fileno())
                is_ours = not hasattr(os, "getuid") or about.st_uid == os.getuid()
                if not is_ours or not stat.S_ISREG(about.st_mode):
                    return None  # somebody else's code is not run
                stored = file.read()
        except OSError:
            return None
        rest = stored[HEAD:]
        return rest if stored[:HEAD] == MAGIC + digest(path.stem, rest) else None

    def entries(self) -> Iterator[Entry]:
        """What is stored and sound."""
        for path in sorted(self.folder.glob("*.o")):
            stored = self.read(path)
            if stored is not None:
                line, _, code = stored.partition(b"\n")
                made = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
                yield Entry(path.stem, **json.loads(line), bytes=len(code), made=made)

    def clear(self) -> int:
        """Delete all files, damaged ones too, and say how many. Raises OSError where one cannot be deleted."""
        paths = [*self.folder.glob("*.o"), *self.folder.glob(".new-*")]
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    def prune(self) -> None:
        """Delete the oldest files where there are too many: kernels of earlier versions. Raises OSError."""
        paths = list(self.folder.glob("*.o"))
        if len(paths) > MOST:
            for path in sorted(paths, key=lambda path: path.stat().st_mtime)[: len(paths) - MOST]:
                path.unlink(missing_ok=True)

    def store(self, key: str, code: bytes, *, name: str, cpu: str) -> None:
        """Keep object code. A folder that cannot be written to costs time at the next start, nothing else."""
        rest = json.dumps({"name": name, "cpu": cpu}).encode() + b"\n" + code
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(MAGIC + digest(key, rest) + rest)
                Path(temporary).replace(self.path(key))
                self.prune()
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError:
            return


def at_once(path: str, flags: int) -> int:
    """Open without waiting for whoever may write at the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def digest(key: str, rest: bytes) -> bytes:
    return hashlib.sha256(key.encode() + rest).digest()


def default_folder() -> Path:
    """Where kernels are kept: in the user's cache folder, since each can be compiled again.

    A user without a home gets a folder that cannot be: nothing is kept.
    """
    from platformdirs import user_cache_path

    try:
        return user_cache_path("puna", appauthor=False) / "code"
    except RuntimeError:  # no home folder is known
        return Path(os.devnull) / "puna" / "code"
