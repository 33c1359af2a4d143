"""Object code on disk, so that a kernel is compiled once on a machine.

One file a kernel, named by the hash of all that decides its bytes. Files are written beside their place and
moved there, readable by their owner alone, and begin with a hash of their contents: a damaged one is ignored.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

__all__ = ["CodeCache"]

MAGIC = b"puna code 1\n"
DIGEST = hashlib.sha256().digest_size


class CodeCache:
    """A folder of object files. It may be shared by processes, emptied, or unwritable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.o"

    def load(self, key: str) -> bytes | None:
        """The object code stored under a key, or None where there is none that is sound and ours."""
        path = self.path(key)
        try:
            if hasattr(os, "getuid") and path.stat().st_uid != os.getuid():
                return None  # somebody else's code is not run
            stored = path.read_bytes()
        except OSError:
            return None
        head, code = stored[: len(MAGIC) + DIGEST], stored[len(MAGIC) + DIGEST :]
        return code if head == MAGIC + hashlib.sha256(code).digest() else None

    def store(self, key: str, code: bytes) -> None:
        """Keep object code. A folder that cannot be written to costs time at the next start, nothing else."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(MAGIC + hashlib.sha256(code).digest() + code)
                Path(temporary).replace(self.path(key))
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError:
            return
