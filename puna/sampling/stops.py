"""Stop strings in a stream of text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from puna.errors import RequestError

__all__ = ["StopMatcher"]


class StopMatcher:
    """Passes text through until one of the stop strings is complete.

    The match that is complete first wins, and of several that end together the longest, however the text is
    cut into pieces. The stop string and what follows it are dropped. Text that may yet become a stop string
    is held back. Time is linear in the text (Aho and Corasick, 1975). `stop` is the string that matched.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        """Raises RequestError for an empty stop string, which would match everywhere."""
        self._next: list[dict[str, int]] = [{}]  # for each prefix of a stop string, the longer ones
        self._depth = [0]  # length of the prefix
        self._match: list[str | None] = [None]  # the longest stop string that ends with the prefix
        self._shorter = [0]  # the longest other prefix that the prefix ends with
        for stop in stops:
            self._insert(stop)
        self._link()
        self._node, self._held = 0, ""
        self.stop: str | None = None

    def push(self, piece: str) -> tuple[str, bool]:
        """(text to emit, whether a stop string was found); after a stop there is no more text."""
        if self.stop is not None:
            return "", True
        text = self._held + piece
        for position, character in enumerate(piece, start=len(self._held) + 1):
            self._node = self._step(self._node, character)
            self.stop = self._match[self._node]
            if self.stop is not None:
                self._held = ""
                return text[: position - len(self.stop)], True
        sure = len(text) - self._depth[self._node]
        self._held = text[sure:]
        return text[:sure], False

    def finish(self) -> str:
        """The text held back when the stream ends without a stop."""
        held, self._held, self._node = self._held, "", 0
        return held

    def _insert(self, stop: str) -> None:
        if not stop:
            raise RequestError("a stop string is empty", where="stop", fix="leave it out")
        node = 0
        for character in stop:
            if character not in self._next[node]:
                self._next[node][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[node] + 1)
                self._match.append(None)
                self._shorter.append(0)
            node = self._next[node][character]
        self._match[node] = stop

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for character, longer in self._next[node].items():
                self._shorter[longer] = self._step(self._shorter[node], character)
                self._match[longer] = self._match[longer] or self._match[self._shorter[longer]]
                queue.append(longer)

    def _step(self, node: int, character: str) -> int:
        while character not in self._next[node]:
            if node == 0:
                return 0
            node = self._shorter[node]
        return self._next[node][character]
