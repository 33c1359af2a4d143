"""Which pages of the KV cache belong to which sequence. The memory itself is the backend's."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from puna.cache.pages import Pool, known_pages, page_keys
from puna.cache.report import CacheReport, report
from puna.cache.states import EMPTY, Held, States
from puna.errors import RequestError
from puna.plan import Batch, KVLayout, Span

__all__ = ["KVCache", "NoRoomError", "Reuse", "Sequence"]

GONE = -1  # in a page table: a page that no layer of the group looks at any more


class NoRoomError(RequestError):
    """Pages, or slots for states, that a step needs are held by other sequences."""


class Sequence:
    """One text in the cache: the ids it holds so far, and for each group of layers the pages that hold them.

    keys: of each full page, standing for its tokens and all before them.  states: the slots of its state.
    border: how many of its first ids are, or are to be, encoded, as a whole; the others are an answer to them.
    cuts: how often ids were taken from it.
    """

    def __init__(self, groups: int = 1, states: Held | None = None) -> None:
        self.states = states or Held()
        self.tokens: list[int] = []
        self.pages: list[list[int]] = [[] for _ in range(groups)]
        self.keys: list[bytes] = []
        self.border = self.cuts = 0
        self.closed = False

    def __len__(self) -> int:
        return len(self.tokens)

    def common_prefix(self, tokens: Tokens[int]) -> int:
        """How many leading ids the sequence shares with `tokens`."""
        most = min(len(self.tokens), len(tokens))
        return next((i for i in range(most) if self.tokens[i] != tokens[i]), most)


@dataclass(frozen=True)
class Reuse:
    """What a cache had of a text: its first `count` tokens, and why not more."""

    count: int
    reason: str


class KVCache:
    """Hands out the pages of a layout. A sequence holds up to `n_ctx` positions; sequences may share pages.

    A page that several sequences hold is written by none: who goes on within it gets a copy first. Models with a state
    need a slot for it at each place that they go on from: see `puna.cache.states`.
    """

    def __init__(self, layout: KVLayout, n_ctx: int) -> None:
        self.layout, self.n_ctx = layout, n_ctx
        self.lock = threading.RLock()  # of the lists below, which several threads' sequences share
        self.pools = [Pool(group.pages) for group in layout.groups]
        self.states = States(layout)
        self.sequences: list[Sequence] = []

    def open(self) -> Sequence:
        """A new, empty sequence."""
        with self.lock:
            sequence = Sequence(len(self.pools), self.states.hold(EMPTY))
            self.sequences.append(sequence)
        return sequence

    def close(self, sequence: Sequence) -> None:
        """Let go of a sequence; its full pages are known for as long as their room is not needed.

        Closing twice does nothing.
        """
        with self.lock:
            if not sequence.closed:
                self.truncate(sequence, 0)
                self.states.pool.release(sequence.states.now)
                self.sequences.remove(sequence)
                sequence.closed = True

    def copy(self, sequence: Sequence) -> Sequence:
        """Another sequence that holds the same, in the same pages. Raises RequestError for a closed one."""
        with self.lock:
            self.refuse_closed(sequence)
            other = self.open()
            other.tokens, other.keys = list(sequence.tokens), list(sequence.keys)
            other.border = sequence.border
            self.states.move(other.states, sequence.states.now)
            for pool, pages, target in zip(self.pools, sequence.pages, other.pages, strict=True):
                for page in pages:
                    if page != GONE:
                        pool.share(page)
                target.extend(pages)
            return other

    def reuse(self, sequence: Sequence, tokens: Tokens[int]) -> Reuse:
        """Let an empty sequence begin with the pages that hold the longest beginning of `tokens`, but not all of them.

        The last token is left, for its logits have to be computed.
        """
        self.refuse_closed(sequence)
        if len(sequence):
            raise RequestError(f"the sequence holds {len(sequence)} tokens already", fix="use an empty one")
        if self.layout.encoded:
            return Reuse(0, "a text is encoded as a whole")
        with self.lock:
            keys = page_keys(tokens, (max(0, len(tokens) - 1)) // self.layout.page, self.layout.page)
            full = [p for p, group in zip(self.pools, self.layout.groups, strict=True) if not group.window]
            found = known_pages(full, [*self.pools, self.states.pool], keys)
            count = next(n for n in range(found, -1, -1) if self.reaches(keys, n))
            self.adopt(sequence, keys[:count])
            sequence.states.fork = found * self.layout.page if count < found else 0
            sequence.tokens = list(tokens[: count * self.layout.page])
            return Reuse(len(sequence), self.reason(tokens, keys, found, count))

    def reason(self, tokens: Tokens[int], keys: list[bytes], found: int, count: int) -> str:
        """Why no more than `count` pages of a text could be reused."""
        page = self.layout.page
        if count < found:
            lost = "no state is kept there" if self.states.used else "not all that a window looks back to"
            return f"positions {count * page} to {found * page - 1} are known, but {lost}"
        if count < len(keys):
            return (
                f"nothing is known that has the same tokens from {count * page} to {count * page + page - 1}"
            )
        return f"the other {len(tokens) - count * page} tokens do not fill a page of {page}, or are the last"

    def reaches(self, keys: list[bytes], count: int) -> bool:
        """Whether the layers with a window, or a state, find what they look back to after `count` pages."""
        if self.states.find(keys, count) is None:
            return False
        for pool, group in zip(self.pools, self.layout.groups, strict=True):
            first = group.first(count * self.layout.page) // self.layout.page
            if group.window and any(pool.find(key) is None for key in keys[first:count]):
                return False
        return True

    def adopt(self, sequence: Sequence, keys: list[bytes]) -> None:
        sequence.keys, state = list(keys), self.states.find(keys, len(keys))
        assert state is not None
        self.states.move(sequence.states, state)
        for pool, group, pages in zip(self.pools, self.layout.groups, sequence.pages, strict=True):
            first = group.first(len(keys) * self.layout.page) // self.layout.page
            pages.extend([GONE] * min(first, len(keys)))
            for key in keys[first:]:
                page = pool.find(key)
                assert page is not None
                pool.share(page)
                pages.append(page)

    def fits(self, lengths: Tokens[int]) -> bool:
        """Whether new sequences of these lengths fit side by side, with all others as they are."""
        pages = sum(map(self.pages_for, lengths))
        slots = not self.states.used or len(lengths) <= self.states.pool.room
        return slots and max(lengths, default=0) <= self.n_ctx and all(p.room >= pages for p in self.pools)

    def room(self, sequence: Sequence | None = None, others: Collection[Sequence] = ()) -> int:
        """Most tokens that a sequence, or a new one, could hold with all others as they are, but for `others`.

        Those would make way for it.
        """
        held, others = 0 if sequence is None else len(sequence), [s for s in others if s is not sequence]
        with self.lock:
            if not self.can_step(sequence, others):
                return held
            own, most = self.pages_for(held), self.n_ctx
            for n, (pool, group) in enumerate(zip(self.pools, self.layout.groups, strict=True)):
                left = pool.room + pool.freed(page for s in others for page in s.pages[n] if page != GONE)
                # The pages of a window go round: what it looks back to is all that it needs.
                if not (group.window and own + left):
                    most = min(most, (own + left) * self.layout.page)
            return most

    def can_step(self, sequence: Sequence | None, others: Collection[Sequence] = ()) -> bool:
        """Whether there is a slot for the state after one more step, or would be with `others` gone."""
        states = [s.states for s in others if s is not sequence]
        return self.states.can_step(None if sequence is None else sequence.states, states)

    def can_grow(self, goals: Mapping[Sequence, int], step: int) -> bool:
        """Whether sequences could all grow to these lengths with all others as they are.

        step: most tokens of a step. What they hold must have been computed.
        """
        with self.lock:
            for sequence in goals:
                self.learn(sequence)
                self.drop(sequence)
            for n, (pool, group) in enumerate(zip(self.pools, self.layout.groups, strict=True)):
                wants = self.pages_for(step) if group.window else 0  # before others can go
                for sequence, length in goals.items():
                    most, pages = self.pages_for(length), sequence.pages[n]
                    most = min(most, self.pages_for(group.window) + 1) if group.window else most
                    own = sum(page != GONE for page in pages) - self.is_split(pool, sequence, pages)
                    wants += max(0, most - own)
                if wants > pool.room:
                    return False
            return sum(self.states.wants(s.states) for s in goals) <= self.states.pool.room

    @property
    def rooms(self) -> list[int]:
        """Pages of each group of layers, then slots for states, that could be taken now."""
        return [pool.room for pool in (*self.pools, self.states.pool)]

    @property
    def report(self) -> CacheReport:
        """Pages and bytes that are held, shared and remembered."""
        with self.lock:
            return report(self.layout, self.pools, self.states.pool, len(self.sequences))

    def truncate(self, sequence: Sequence, length: int) -> int:
        """Forget what a sequence holds from position `length` on. Gives the length that is left.

        It is less where a layer's window looks back to what the cache no longer has, then nothing is left; or where no
        state is kept, then what is left are the pages up to the last that is; or of a text that is encoded as a whole,
        which goes as a whole. Raises RequestError for a length that it does not have, and a sequence that is not open.
        """
        self.refuse_closed(sequence)
        if not (isinstance(length, Integral) and 0 <= length <= len(sequence)):
            raise RequestError(f"cannot truncate a sequence of {len(sequence)} tokens to {length!r}")
        with self.lock:
            self.learn(sequence)
            length = 0 if length < sequence.border else length
            if length < len(sequence):
                length, state = next(
                    (n, state) for n, state in self.stops(sequence, length) if self.regain(sequence, n)
                )
                self.states.move(sequence.states, state)
            self.cut(sequence, length)
            return length

    def stops(self, sequence: Sequence, length: int) -> Iterator[tuple[int, int]]:
        """Lengths up to `length` that a sequence may be cut to as far as its state goes, and the slot of that."""
        if not self.states.used:
            yield length, EMPTY
        for n in range(length // self.layout.page * self.states.used, 0, -1):
            if (state := self.states.find(sequence.keys, n)) is not None:
                yield n * self.layout.page, state
        yield 0, EMPTY

    def undo(self, sequence: Sequence, length: int) -> None:
        """Take back an `append` to a sequence that held `length` tokens, whose step failed."""
        with self.lock:
            if length < len(sequence):
                self.states.undo(sequence.states)
            self.cut(sequence, length)

    def cut(self, sequence: Sequence, length: int) -> None:
        keep, sequence.cuts = self.pages_for(length), sequence.cuts + (length < len(sequence))
        for pool, pages in zip(self.pools, sequence.pages, strict=True):
            for page in reversed(pages[keep:]):
                if page != GONE:
                    pool.release(page)
            del pages[keep:]
        del sequence.tokens[length:]
        del sequence.keys[length // self.layout.page :]

    def regain(self, sequence: Sequence, length: int) -> bool:
        """Take up again the pages that windows look back to from `length`; False, with no change, if one is lost."""
        wanted = [
            (pool, pages, place, pool.find(sequence.keys[place]))
            for pool, group, pages in zip(self.pools, self.layout.groups, sequence.pages, strict=True)
            for place in range(group.first(length) // self.layout.page, self.pages_for(length))
            if pages[place] == GONE
        ]
        if any(page is None for *_, page in wanted):
            return False
        for pool, pages, place, page in wanted:
            assert page is not None
            pool.share(page)
            pages[place] = page
        return True

    def append(
        self, *parts: tuple[Sequence, Tokens[int]], outputs: Tokens[int], encodes: bool = False
    ) -> Batch:
        """Make room for the next tokens of one or more sequences: the batch that computes them.

        outputs: rows of the batch whose logits are wanted. What the sequences hold already must have been computed.
        encodes: these are whole texts for an encoder, of empty sequences.
        Raises RequestError, and changes nothing, when they do not fit or a sequence is closed.
        """
        with self.lock:
            for sequence, _ in parts:
                self.refuse_closed(sequence)
            for sequence, _ in parts:
                self.learn(sequence)
                self.drop(sequence)
            self.refuse(parts)
            return self.extend(parts, outputs, encodes)

    def learn(self, sequence: Sequence) -> None:
        """Make the full pages of a sequence known, and its state at the last border of pages."""
        page, first = self.layout.page, len(sequence.keys)
        sequence.keys += page_keys(
            sequence.tokens, len(sequence) // page, page, sequence.keys, sequence.border
        )
        for pool, pages in zip(self.pools, sequence.pages, strict=True):
            for place in range(first, len(sequence.keys)):
                pool.learn(pages[place], sequence.keys[place])
        self.states.settle(sequence.states, len(sequence), sequence.keys)

    def drop(self, sequence: Sequence) -> None:
        """Let go of pages that no layer of a group will look at again."""
        for pool, group, pages in zip(self.pools, self.layout.groups, sequence.pages, strict=True):
            place = group.first(len(sequence)) // self.layout.page - 1
            while place >= 0 and pages[place] != GONE:
                pool.release(pages[place])
                pages[place] = GONE
                place -= 1

    def extend(
        self, parts: Tokens[tuple[Sequence, Tokens[int]]], outputs: Tokens[int], encodes: bool
    ) -> Batch:
        tokens: list[int] = []
        positions: list[int] = []
        spans = []
        copies: list[tuple[int, int, int]] = []
        left = sum(len(new) > 0 for _, new in parts)  # parts that need a slot yet
        for sequence, new in parts:
            past = len(sequence)
            if new:
                copies += self.own_last(sequence)
            sequence.tokens.extend(new)
            for pool, pages in zip(self.pools, sequence.pages, strict=True):
                while len(pages) < self.pages_for(len(sequence)):
                    pages.append(pool.take())
            tables = tuple(np.array(pages, np.int32) for pages in sequence.pages)
            spare = max(0, self.states.pool.room - left)
            segments = self.states.advance(sequence.states, len(tokens), past, len(new), spare)
            left -= len(new) > 0
            spans.append(Span(len(tokens), len(new), past, tables, segments, sequence.border))
            tokens.extend(new)
            positions.extend(range(past, past + len(new)))
        ids, places, rows = (np.array(part, np.int32) for part in (tokens, positions, outputs))
        return Batch(ids, places, tuple(spans), rows, tuple(copies), encodes)

    def own_last(self, sequence: Sequence) -> list[tuple[int, int, int]]:
        """Make the page that a sequence goes on within its own: (group, from, to) of what must be copied for that."""
        copies = []
        if len(sequence) % self.layout.page:
            for n, (pool, pages) in enumerate(zip(self.pools, sequence.pages, strict=True)):
                if pool.is_shared(pages[-1]):
                    page = pool.take()
                    copies.append((n, pages[-1], page))
                    pool.release(pages[-1])
                    pages[-1] = page
                pool.forget(pages[-1])
        return copies

    def refuse_closed(self, sequence: Sequence) -> None:
        """Raise RequestError for a sequence that is not open in this cache."""
        if sequence not in self.sequences:
            closed = getattr(sequence, "closed", False)
            what = "the sequence is closed" if closed else "this is no sequence of the model's cache"
            raise RequestError(what, fix="open another with cache.open()")

    def refuse(self, parts: Tokens[tuple[Sequence, Tokens[int]]]) -> None:
        """Raise RequestError where tokens do not fit the context, or their pages the cache."""
        for sequence, new in parts:
            if len(sequence) + len(new) > self.n_ctx:
                what = f"{len(sequence) + len(new)} tokens do not fit the context of {self.n_ctx}"
                raise RequestError(what, fix="raise n_ctx (-c)")
        if self.states.used and sum(len(new) > 0 for _, new in parts) > self.states.pool.room:
            what = f"there are slots for {self.states.pool.count - 1} states, and sequences hold them all"
            raise NoRoomError(what, fix="raise parallel (-np), or close a sequence")
        for n, pool in enumerate(self.pools):
            need = sum(self.need(pool, sequence, sequence.pages[n], len(new)) for sequence, new in parts)
            if need > pool.room:
                more, room = sum(len(new) for _, new in parts), pool.room * self.layout.page
                what = f"{more} more tokens do not fit: the cache has room for {room} beside what its sequences hold"
                raise NoRoomError(what, fix="raise n_ctx (-c), or close a sequence")

    def need(self, pool: Pool, sequence: Sequence, pages: list[int], more: int) -> int:
        """Pages to take for `more` tokens."""
        copied = more > 0 and self.is_split(pool, sequence, pages)
        return self.pages_for(len(sequence) + more) - len(pages) + copied

    def is_split(self, pool: Pool, sequence: Sequence, pages: list[int]) -> bool:
        """Whether who goes on within the last page gets a copy of it."""
        return len(sequence) % self.layout.page > 0 and pool.is_shared(pages[-1])

    def pages_for(self, length: int) -> int:
        return -(-length // self.layout.page)
