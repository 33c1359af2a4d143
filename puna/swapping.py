"""Where texts wait that are paused for want of memory: in files, or nowhere, to be computed again."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from pathlib import Path

from puna.cache import KVCache, Sequence, saved
from puna.errors import PunaError, RequestError
from puna.steps import Steps
from puna.units import human

__all__ = ["CHOICES", "Swap", "Swapped"]

CHOICES = ("auto", "always", "never")
PRESUMED = 500e6  # bytes a second that a file takes and gives, until that was measured


class Swapped:
    """A sequence in a temporary file without a name: however the process ends, nothing is left of it."""

    def __init__(self, steps: Steps, sequence: Sequence, folder: Path | None) -> None:
        """Raises OSError where the file cannot be written."""
        self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 it lives on
        try:
            with steps.lock:
                memory = steps.backend.memory(steps.program)
                saved.write(self.file, "", {}, steps.cache, sequence, memory)
            self.file.flush()
        except BaseException:
            self.close()
            raise
        self.nbytes = self.file.tell()

    def read(self, steps: Steps) -> Sequence:
        """Raises OSError where the file cannot be read, PunaError where it changed or the cache has no room."""
        self.file.seek(0)
        with steps.lock:
            memory = steps.backend.memory(steps.program)
            where = "the file of a paused text"
            return saved.read(self.file, self.nbytes, where, {}, steps.cache, memory, steps.n_vocab)

    def close(self) -> None:
        with suppress(OSError):  # what could not be written before cannot be now
            self.file.close()


class Swap:
    """Decides where a paused text waits.

    With "auto" that is what takes less time: to write and read its bytes, at the speed of the swaps so far, or to
    compute its tokens again at a given rate, but for those whose pages other texts hold, too. A file that cannot be
    written or read is no end of a text: it is computed again, and `notes` says so.
    """

    def __init__(self, steps: Steps, choice: str, folder: str | Path | None) -> None:
        """Raises RequestError for a choice that does not exist, and a folder that is none."""
        if choice not in CHOICES:
            raise RequestError(
                f"{choice!r} is no choice", where="swap", fix=f"use one of {', '.join(CHOICES)}"
            )
        if folder is not None and not Path(folder).is_dir():
            raise RequestError("this is no folder", where=str(folder), fix="name one for swapped texts")
        self.steps, self.choice, self.folder = steps, choice, None if folder is None else Path(folder)
        self.bytes, self.seconds = 0, 0.0
        self.notes: list[str] = []

    @property
    def speed(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds if self.seconds else PRESUMED

    def pays(self, sequence: Sequence, rate: float) -> bool:
        """Whether a sequence should wait in a file. rate: tokens that can be computed in a second."""
        if self.choice != "auto":
            return self.choice == "always"
        cache = self.steps.cache
        return 2 * saved.nbytes(cache, sequence) / self.speed < lost(cache, sequence) / max(rate, 1e-9)

    def leave(self, sequence: Sequence, rate: float) -> Swapped | None:
        """Write a sequence to a file; None where it should be computed again."""
        if not self.pays(sequence, rate):
            return None
        started = time.perf_counter()
        try:
            swapped = Swapped(self.steps, sequence, self.folder)
        except OSError as error:
            self.choice = "never"
            size = human(saved.nbytes(self.steps.cache, sequence))
            what = f"{size} of a paused text could not be written to a file: {error.strerror or error}"
            self.notes.append(f"{what}; paused texts are computed again from now on")
            return None
        self.bytes += swapped.nbytes
        self.seconds += time.perf_counter() - started
        return swapped

    def back(self, swapped: Swapped) -> Sequence | None:
        """What a file has; None where it must be computed again. The file is gone after that."""
        started = time.perf_counter()
        try:
            sequence = swapped.read(self.steps)
        except (OSError, PunaError) as error:
            self.notes.append(f"a paused text is computed again, for its file cannot be used: {error}")
            return None
        finally:
            swapped.close()
        self.bytes += swapped.nbytes
        self.seconds += time.perf_counter() - started
        return sequence


def lost(cache: KVCache, sequence: Sequence) -> int:
    """Tokens of a sequence that may have to be computed again once it is closed."""
    if cache.states.used or any(group.window for group in cache.layout.groups):
        return len(sequence)  # it goes on from one place alone, which others may not keep
    shared = [
        next((n for n, page in enumerate(pages) if not pool.is_shared(page)), len(pages))
        for pool, pages in zip(cache.pools, sequence.pages, strict=True)
    ]
    return max(0, len(sequence) - min(shared, default=0) * cache.layout.page)
