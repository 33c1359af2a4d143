"""Together or alone: threads that are kept from their cores make one another wait, and then one is faster."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf

__all__ = ["Pace"]

LATE = 2.5  # a step that takes so much longer than its kind's best makes the next one a trial alone
HELD = 0.6  # so do steps during which the caller has its core for less than this share of the time,
BUSY = 2  # so many of them at least,
LONG = 0.1  # and that many seconds: some systems count a thread's time in steps of 16 ms
WORTH = 0.7  # going on alone must take less than this share of the late step
STEPS, MOST = 16, 512  # that are run alone before all try again: twice as many each time, up to a limit
NEAR = 32  # a kind that is new goes alone where one with a row for so many of its own does
KINDS = 64  # of which times are kept


@dataclass
class Times:
    """Of one kind of step.

    best: seconds of the fastest together.  late: of a step together, while a trial alone is due.
    alone: of the last one alone.  left: steps still to be run alone; `turn`: how many at a time.
    rest: steps together before another trial; `pause`: how many at a time.
    steps, seconds, held: since the last look at how busy the machine is.
    """

    best: float = inf
    late: float = 0.0
    alone: float = inf
    left: int = 0
    turn: int = STEPS
    rest: int = 0
    pause: int = STEPS
    steps: int = 0
    seconds: float = 0.0
    held: float = 0.0

    def together(self, seconds: float, held: float) -> None:
        """A step that all threads ran."""
        self.count(seconds, held)
        is_late = seconds > LATE * self.best or WORTH * seconds > self.alone or self.is_busy()
        self.best = min(self.best, seconds)
        self.rest = max(0, self.rest - 1)
        if not is_late:
            self.turn = STEPS
        elif not self.rest:
            self.late = seconds

    def count(self, seconds: float, held: float) -> None:
        self.steps, self.seconds, self.held = self.steps + 1, self.seconds + seconds, self.held + held

    def is_busy(self) -> bool:
        """Whether the caller was kept from its core: that tells even where no step was ever fast."""
        if self.steps < BUSY or self.seconds < LONG:
            return False
        busy = self.held < HELD * self.seconds
        self.steps, self.seconds, self.held = 0, 0.0, 0.0
        return busy

    def by_itself(self, seconds: float, held: float) -> None:
        """A step that the caller ran alone."""
        self.alone, late, self.late = seconds, self.late, 0.0
        if not late:
            self.count(seconds, held)
            self.left = max(0, self.left - 1)
            if not self.left and self.turn < MOST and self.is_busy():
                self.go_alone()
        elif seconds < WORTH * late:
            self.pause = STEPS
            self.go_alone()
        else:
            # Steps may have become longer for good, as over a longer past: then being late means nothing. What the
            # trial cost more than a step together is spread over those that follow.
            self.best, self.turn = late, STEPS
            self.rest, self.pause = int(self.pause * max(1.0, seconds / late)), min(MOST, 2 * self.pause)

    def go_alone(self) -> None:
        self.left, self.turn = self.turn, min(MOST, 2 * self.turn)
        self.steps, self.seconds, self.held = 0, 0.0, 0.0


class Pace:
    """Watches how long steps take. Results do not depend on it: only the time does."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[Hashable, ...], Times] = {}  # the last that was run at its end

    def is_alone(self, kind: tuple[Hashable, ...]) -> bool:
        """Whether the caller runs the next step of a kind by itself. kind: its rows, then what else matters."""
        known = self.kinds.get(kind) or self.near(kind)
        return known is not None and (known.left > 0 or known.late > 0)

    def near(self, kind: tuple[Hashable, ...]) -> Times | None:
        """A kind that goes alone, for one of which nothing is known."""
        alone = (times for known, times in self.kinds.items() if times.left and is_near(known, kind))
        return next(alone, None)

    def note(
        self, kind: tuple[Hashable, ...], alone: bool, seconds: float, held: float | None = None
    ) -> None:
        """How long a step of a kind took. held: seconds of it that the caller had its core; None for all."""
        if alone and kind not in self.kinds:
            if near := self.near(kind):
                near.left -= 1
            return
        times = self.kinds.pop(kind, None) or Times()
        if len(self.kinds) >= KINDS:
            del self.kinds[next(iter(self.kinds))]
        self.kinds[kind] = times
        (times.by_itself if alone else times.together)(seconds, seconds if held is None else held)


def is_near(known: tuple[Hashable, ...], kind: tuple[Hashable, ...]) -> bool:
    rows, most = kind[0], known[0]
    return isinstance(rows, int) and isinstance(most, int) and rows <= NEAR * most
