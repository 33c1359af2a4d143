"""Files in the folder of models: room for them, and whether they are whole."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from puna.errors import StoreError
from puna.progress import Progress
from puna.store.progress import stage
from puna.units import human

__all__ = ["BLOCK", "is_whole", "need_room", "writing"]

BLOCK = 1 << 20  # bytes read at once


def need_room(folder: Path, wanted: int) -> None:
    """Make the folder, and raise StoreError unless so many bytes can be written there."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    if free < wanted:
        what = f"{human(wanted)} are needed and {human(free)} are free"
        raise StoreError(what, where=str(folder), fix="free some space, or set PUNA_MODELS to another folder")


def is_whole(path: Path, sha256: str, progress: Progress) -> bool:
    """Whether the file's bytes have this digest."""
    digest = hashlib.sha256()
    with stage(progress, f"checking {path.name}", path.stat().st_size) as advance, path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest() == sha256


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns an OSError into a StoreError about the folder."""
    try:
        yield
    except OSError as error:
        fix = "check the folder, or set PUNA_MODELS to one that can be written"
        raise StoreError(error.strerror or str(error), where=str(folder), fix=fix) from error
