"""Slots for the states of sequences, in models that carry one from token to token.

A step reads a sequence's state in one slot and writes the new one into another. So a slot is written once and only
read after that: sequences share slots as they share pages, copying one costs nothing, and the slot that a step read is
still there if the step fails. States at borders of pages are kept for as long as no step needs their room, known by the
key of the page, so that a text with the same beginning, or one that is cut back, can go on from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Keys
from dataclasses import dataclass, field

from puna.cache.pages import Pool
from puna.plan import KVLayout, Segment

__all__ = ["EMPTY", "Held", "States"]

EMPTY = 0  # the slot of all zeros, from which every text begins


@dataclass
class Held:
    """What a sequence holds. now: slot of its state.  before: that before its last step, until the next begins.

    borders: of page borders that the last step passed, length and slot.
    fork: up to where pages of the same text are known, but no state: others may want to go on from there.
    """

    now: int = EMPTY
    before: int | None = None
    borders: list[tuple[int, int]] = field(default_factory=list)
    fork: int = 0

    @property
    def slots(self) -> list[int]:
        """All slots that are held."""
        return [
            self.now,
            *([] if self.before is None else [self.before]),
            *(slot for _, slot in self.borders),
        ]


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
        for at, slot in held.borders:
            self.pool.learn(slot, keys[at // self.page - 1])
            self.pool.release(slot)
        held.before, held.borders = None, []
        if length and length % self.page == 0 and held.now != EMPTY:
            self.pool.learn(held.now, keys[length // self.page - 1])

    def undo(self, held: Held) -> None:
        """The last step has failed."""
        if held.before is None:
            return
        self.pool.release(held.now)
        for _, slot in held.borders:
            self.pool.release(slot)
        held.now, held.before, held.borders = held.before, None, []

    def find(self, keys: Keys[bytes], pages: int) -> int | None:
        """The slot of the state after so many pages of a text, where one is known."""
        return self.pool.find(keys[pages - 1]) if pages and self.used else EMPTY

    def move(self, held: Held, slot: int) -> None:
        """A settled sequence goes on from another state."""
        self.pool.share(slot)
        self.pool.release(held.now)
        held.now = slot

    def can_step(self, held: Held | None, others: Iterable[Held] = ()) -> bool:
        """Whether there is a slot for one more step, or would be with `others` gone."""
        frees = held is not None and held.before is not None and not self.pool.is_shared(held.before)
        freed = self.pool.freed(slot for other in others for slot in other.slots if slot != EMPTY)
        return not self.used or bool(self.pool.room) or frees or freed > 0

    def wants(self, held: Held) -> int:
        """Slots that a settled sequence takes beside what it holds: for its state before a step, and after."""
        return self.used * (2 if held.now == EMPTY else 1)

    def advance(self, held: Held, start: int, past: int, count: int, spare: int) -> tuple[Segment, ...]:
        """Slots for a step of `count` rows from row `start` of the batch on, to a settled sequence of `past` tokens.

        spare: how many there may be for page borders before its end: where texts fork, and the last one.
        """
        if not self.used or not count:
            return ()
        end = past + count
        borders = [at for at in (held.fork, end // self.page * self.page) if past < at < end]
        segments, held.before, row = list[Segment](), held.now, start
        for at in [*sorted(set(borders[:spare])), end]:
            slot = self.pool.take()
            segments.append(Segment(row, start + at - past - row, held.now, slot))
            held.now, row = slot, start + at - past
            if at < end:
                held.borders.append((at, slot))
        return tuple(segments)
