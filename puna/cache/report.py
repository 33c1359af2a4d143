"""What a cache holds, in numbers: pages and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from puna.cache.pages import Pool
from puna.plan import KVLayout

__all__ = ["CacheReport", "GroupReport", "report"]


@dataclass(frozen=True)
class GroupReport:
    """Pages of layers that keep the same positions, or slots for states.

    nbytes: of one page, in all of the layers.  pages: that there are.  held: by sequences.  shared: of those, by
    several.  remembered: held by none, but known for as long as nothing needs their room.
    """

    nbytes: int
    pages: int
    held: int
    shared: int
    remembered: int


@dataclass(frozen=True)
class CacheReport:
    """What a cache holds. sequences: open ones.  groups: of layers.  states: slots of states."""

    sequences: int
    groups: tuple[GroupReport, ...]
    states: GroupReport

    @property
    def nbytes(self) -> int:
        """Bytes of all pages and slots."""
        return sum(part.nbytes * part.pages for part in (*self.groups, self.states))

    @property
    def held(self) -> int:
        """Bytes that sequences hold; what several share counts once."""
        return sum(part.nbytes * part.held for part in (*self.groups, self.states))

    @property
    def shared(self) -> int:
        """Bytes, of those, that several sequences hold."""
        return sum(part.nbytes * part.shared for part in (*self.groups, self.states))

    @property
    def remembered(self) -> int:
        """Bytes that no sequence holds, and that a text with the same beginning need not compute again."""
        return sum(part.nbytes * part.remembered for part in (*self.groups, self.states))


def report(layout: KVLayout, pools: Sequence[Pool], states: Pool, sequences: int) -> CacheReport:
    """How the pools of a layout stand."""
    widths = [sum(map(layout.page_bytes, group.layers)) for group in layout.groups]
    groups = tuple(part(pool, nbytes) for pool, nbytes in zip(pools, widths, strict=True))
    return CacheReport(sequences, groups, part(states, layout.slot_bytes, own=1))


def part(pool: Pool, nbytes: int, own: int = 0) -> GroupReport:
    """own: the first pages, which the pool's owner keeps for itself."""
    holders = pool.holders[own:]
    held, shared = sum(count > 0 for count in holders), sum(count > 1 for count in holders)
    return GroupReport(nbytes, len(holders), held, shared, len(pool.idle))
