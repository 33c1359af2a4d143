"""Stages of work that tell how far they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from puna.progress import Progress

__all__ = ["Silent", "growth", "stage"]

PERIOD = 0.1  # seconds between two looks at a growing file


class Silent:
    """Progress that nobody looks at."""

    def start(self, label: str, total: int) -> None: ...

    def advance(self, count: int) -> None: ...

    def done(self) -> None: ...


@contextmanager
def stage(progress: Progress, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """One stage of the work; gives its `advance`."""
    progress.start(label, total)
    try:
        yield progress.advance
    finally:
        progress.done()


@contextmanager
def growth(folder: Path, size: int, advance: Callable[[int], None]) -> Iterator[None]:
    """Advance by `size` bytes in all while something else writes files below a folder.

    Follows the sizes of the files, since what writes them has no report of its own that can be relied on.
    """
    stop, told, before = threading.Event(), 0, _bytes_below(folder)

    def follow() -> None:
        nonlocal told
        while not stop.wait(PERIOD):
            now = min(_bytes_below(folder) - before, size)
            if now > told:
                advance(now - told)
                told = now

    thread = threading.Thread(target=follow, name="puna-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    advance(size - told)


def _bytes_below(folder: Path) -> int:
    return sum(_size(path) for path in folder.rglob("*"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:  # moved away while we looked
        return 0
