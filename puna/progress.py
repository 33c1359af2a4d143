"""How long work, such as loading and fetching, tells how far it is."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress"]


class Progress(Protocol):
    """Told of each stage of the work, in bytes: `start`, any number of `advance`, and always `done`.

    The calls of one stage do not overlap, but may come from another thread than the one that waits.
    """

    def start(self, label: str, total: int) -> None: ...

    def advance(self, count: int) -> None: ...

    def done(self) -> None: ...
