"""Which pages of the KV cache belong to which sequence. The memory itself is the backend's."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Tokens

import numpy as np

from puna.errors import RequestError
from puna.plan import Batch, KVLayout, Span

__all__ = ["KVCache", "Sequence"]


class Sequence:
    """One text in the cache: the ids it holds so far and the pages that hold their keys and values."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.pages: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def common_prefix(self, tokens: Tokens[int]) -> int:
        """How many leading ids the sequence shares with `tokens`."""
        most = min(len(self.tokens), len(tokens))
        return next((i for i in range(most) if self.tokens[i] != tokens[i]), most)


class KVCache:
    """Hands out the pages of a layout. `n_ctx` positions in all; a page belongs to one sequence."""

    def __init__(self, layout: KVLayout, n_ctx: int) -> None:
        self.layout, self.n_ctx = layout, n_ctx
        self.lock = threading.RLock()  # of the lists below, which several threads' sequences share
        self.free = list(range(layout.pages - 1, -1, -1))
        self.sequences: list[Sequence] = []

    def open(self) -> Sequence:
        """A new, empty sequence."""
        sequence = Sequence()
        with self.lock:
            self.sequences.append(sequence)
        return sequence

    def close(self, sequence: Sequence) -> None:
        """Give all pages of a sequence back. Closing twice does nothing."""
        with self.lock:
            self.truncate(sequence, 0)
            if sequence in self.sequences:
                self.sequences.remove(sequence)

    def room(self, sequence: Sequence | None = None) -> int:
        """Most tokens that a sequence, or a new one, could hold with all others as they are."""
        others = [s for s in self.sequences if s is not sequence]
        pages = self.layout.pages - sum(len(s.pages) for s in others)
        return max(0, min(self.n_ctx - sum(map(len, others)), pages * self.layout.page))

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forget what a sequence holds from position `length` on."""
        if not 0 <= length <= len(sequence):
            raise RequestError(f"cannot truncate a sequence of {len(sequence)} tokens to {length}")
        with self.lock:
            del sequence.tokens[length:]
            keep = self.pages_for(length)
            self.free.extend(reversed(sequence.pages[keep:]))
            del sequence.pages[keep:]

    def append(self, *parts: tuple[Sequence, Tokens[int]], outputs: Tokens[int]) -> Batch:
        """Make room for the next tokens of one or more sequences: the batch that computes them.

        outputs: rows of the batch whose logits are wanted.
        Raises RequestError, and changes nothing, when they do not fit or a sequence is closed.
        """
        with self.lock:
            self.refuse(parts)
            return self.extend(parts, outputs)

    def extend(self, parts: Tokens[tuple[Sequence, Tokens[int]]], outputs: Tokens[int]) -> Batch:
        tokens: list[int] = []
        positions: list[int] = []
        spans = []
        for sequence, new in parts:
            past = len(sequence)
            sequence.tokens.extend(new)
            while len(sequence.pages) < self.pages_for(len(sequence)):
                sequence.pages.append(self.free.pop())
            spans.append(Span(len(tokens), len(new), past, np.array(sequence.pages, np.int32)))
            tokens.extend(new)
            positions.extend(range(past, past + len(new)))
        as_ids = (np.array(part, np.int32) for part in (tokens, positions, outputs))
        ids, places, rows = as_ids
        return Batch(ids, places, tuple(spans), rows)

    def refuse(self, parts: Tokens[tuple[Sequence, Tokens[int]]]) -> None:
        if any(sequence not in self.sequences for sequence, _ in parts):
            raise RequestError("the sequence is closed", fix="open another with cache.open()")
        held = sum(map(len, self.sequences))
        more = sum(len(new) for _, new in parts)
        pages = sum(self.pages_for(len(s) + len(new)) - len(s.pages) for s, new in parts)
        if held + more > self.n_ctx or pages > len(self.free):
            free = min(self.n_ctx - held, len(self.free) * self.layout.page)
            others = f", of which {free} are free for a sequence" if len(self.sequences) > len(parts) else ""
            raise RequestError(
                f"{held + more} tokens do not fit the context of {self.n_ctx}{others}", fix="raise n_ctx (-c)"
            )

    def pages_for(self, length: int) -> int:
        return -(-length // self.layout.page)
