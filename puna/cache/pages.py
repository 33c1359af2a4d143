"""A pool of pages: counted references, and full pages that are kept for as long as nothing else needs their room."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["Pool", "known_pages", "page_keys"]


class Pool:
    """Pages 0 to count - 1 of the layers that keep the same positions.

    A page is free, held by one sequence or more, or idle: held by none, but its content is known by a key, so that a
    text with the same beginning can take it up again. When no page is free, the idle one that was let go of first gives
    way.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = list(range(count - 1, -1, -1))
        self.holders = [0] * count
        self.keys: list[bytes | None] = [None] * count
        self.known: dict[bytes, int] = {}  # key -> page
        self.idle: OrderedDict[int, None] = OrderedDict()  # the first let go of first

    @property
    def room(self) -> int:
        """Pages that could be taken now."""
        return len(self.free) + len(self.idle)

    def take(self) -> int:
        """A page of which nothing is known. There must be room."""
        if not self.free:
            page, _ = self.idle.popitem(last=False)
            self.forget(page)
            self.free.append(page)
        page = self.free.pop()
        self.holders[page] = 1
        return page

    def share(self, page: int) -> None:
        """One more sequence holds the page."""
        self.holders[page] += 1
        self.idle.pop(page, None)

    def release(self, page: int) -> None:
        """One sequence less holds the page."""
        self.holders[page] -= 1
        if self.holders[page]:
            return
        if self.keys[page] is None:
            self.free.append(page)
        else:
            self.idle[page] = None

    def freed(self, pages: Iterable[int]) -> int:
        """How many of these pages, each listed once for each sequence that has it, nobody else holds."""
        return sum(self.holders[page] == count for page, count in Counter(pages).items())

    def is_shared(self, page: int) -> bool:
        return self.holders[page] > 1

    def learn(self, page: int, key: bytes) -> None:
        """The page is full, and `key` stands for what it holds and all that comes before it."""
        if self.keys[page] is None and key not in self.known:
            self.keys[page], self.known[key] = key, page

    def forget(self, page: int) -> None:
        """What the page holds is about to change."""
        key = self.keys[page]
        if key is not None:
            del self.known[key]
            self.keys[page] = None

    def find(self, key: bytes) -> int | None:
        """The page with this content."""
        return self.known.get(key)


def page_keys(
    tokens: Sequence[int], pages: int, page: int, known: Sequence[bytes] = (), border: int = 0
) -> list[bytes]:
    """Keys of the first `pages` pages of a text that are not among the `known` first ones.

    border: how many of its tokens were encoded as a whole, so that each page depends on all of them.
    """
    whole = np.array(tokens[:border], np.int32).tobytes()
    keys, before = [], known[-1] if known else whole
    for place in range(len(known), pages):
        part = np.array(tokens[place * page : (place + 1) * page], np.int32)
        before = hashlib.blake2b(before + part.tobytes(), digest_size=16).digest()
        keys.append(before)
    return keys


def known_pages(full: Sequence[Pool], others: Sequence[Pool], keys: Sequence[bytes]) -> int:
    """How many pages of a text are known, whether or not it can go on after them. full: pools that keep all pages."""
    if full:
        return next((n for n, key in enumerate(keys) if any(p.find(key) is None for p in full)), len(keys))
    known = (n for n in range(len(keys), 0, -1) if any(p.find(keys[n - 1]) is not None for p in others))
    return next(known, 0)
