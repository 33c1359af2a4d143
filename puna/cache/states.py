"""Slots for the states of sequences, in models that carry one from token to token.

A step reads a sequence's state in one slot and writes the new one into another. So a slot is written once and only
read after that: sequences share slots as they share pages, copying one costs nothing, and the slot that a step read is
still there if the step fails. States at borders of pages are kept for as long as no step needs their room, known by the
key of the page, so that a text with the same beginning, or one that is cut back, can go on from there.
"""

from __future__ import annotations

from collections.abc import Sequence as Keys
from dataclasses import dataclass

from puna.cache.pages import Pool
from puna.plan import KVLayout, Segment

__all__ = ["EMPTY", "Held", "States"]

EMPTY = 0  # the slot of all zeros, from which every text begins


@dataclass
class Held:
    """What a sequence holds. now: slot of its state.  before: that before its last step, until the next begins.

    border: of the page border that the last step passed, with its length, where that has a slot.
    """

    now: int = EMPTY
    before: int | None = None
    border: tuple[int, int] | None = None


class States:
    """Hands out the slots of a layout; `used` tells whether there are any."""

    def __init__(self, layout: KVLayout) -> None:
        self.page, self.used = layout.page, bool(layout.states)
        self.pool = Pool(max(1, layout.slots))
        self.pool.take()  # EMPTY, which stays taken

    def hold(self, slot: int) -> Held:
        """For a new sequence."""
        self.pool.share(slot)
        return Held(slot)

    def settle(self, held: Held, length: int, keys: Keys[bytes]) -> None:
        """The last step is computed, and has come to `length`. keys: of the pages up to there."""
        if held.before is not None:
            self.pool.release(held.before)
        if held.border is not None:
            at, slot = held.border
            self.pool.learn(slot, keys[at // self.page - 1])
            self.pool.release(slot)
        held.before = held.border = None
        if length and length % self.page == 0 and held.now != EMPTY:
            self.pool.learn(held.now, keys[length // self.page - 1])

    def undo(self, held: Held) -> None:
        """The last step has failed."""
        if held.before is None:
            return
        self.pool.release(held.now)
        if held.border is not None:
            self.pool.release(held.border[1])
        held.now, held.before, held.border = held.before, None, None

    def find(self, keys: Keys[bytes], pages: int) -> int | None:
        """The slot of the state after so many pages of a text, where one is known."""
        return self.pool.find(keys[pages - 1]) if pages and self.used else EMPTY

    def move(self, held: Held, slot: int) -> None:
        """A settled sequence goes on from another state."""
        self.pool.share(slot)
        self.pool.release(held.now)
        held.now = slot

    def can_step(self, held: Held | None) -> bool:
        """Whether there is a slot for one more step."""
        frees = held is not None and held.before is not None and not self.pool.is_shared(held.before)
        return not self.used or bool(self.pool.room) or frees

    def advance(self, held: Held, start: int, past: int, count: int, spare: bool) -> tuple[Segment, ...]:
        """Slots for a step of `count` rows from row `start` of the batch on, to a settled sequence of `past` tokens.

        spare: there may be one for the last page border before its end, too.
        """
        if not self.used or not count:
            return ()
        held.before, rows = held.now, count
        border = (past + count) // self.page * self.page
        segments: tuple[Segment, ...] = ()
        if spare and past < border < past + count:
            held.now, rows = self.pool.take(), past + count - border
            held.border = border, held.now
            segments = (Segment(start, border - past, held.before, held.now),)
        source, held.now = held.now, self.pool.take()
        return (*segments, Segment(start + count - rows, rows, source, held.now))
