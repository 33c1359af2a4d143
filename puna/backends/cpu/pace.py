"""Together or alone: threads that are kept from their cores make one another wait, and then one is faster."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["Pace"]

LATE = 2.5  # a step that takes so much longer than its kind's best makes the next one a trial alone
WORTH = 0.7  # going on alone must take less than this share of the late step
STEPS = 16  # that are run alone before all try again
KINDS = 64  # of which times are kept


class Pace:
    """Watches how long steps take. Results do not depend on it: only the time does."""

    def __init__(self) -> None:
        self.best: dict[Hashable, float] = {}
        self.late: dict[Hashable, float] = {}  # kind -> seconds of the late step, while a trial alone is due
        self.left = 0  # steps still to be run alone

    def is_alone(self, kind: Hashable) -> bool:
        """Whether the caller runs the next step of a kind by itself."""
        return self.left > 0 or kind in self.late

    def note(self, kind: Hashable, alone: bool, seconds: float) -> None:
        """How long a step of a kind took."""
        late = self.late.pop(kind, None)
        if alone and late is None:
            self.left -= 1
        elif alone and late is not None:
            # Steps may have become longer for good, as over a longer past: then being late means nothing.
            self.left = STEPS if seconds < WORTH * late else 0
            self.best[kind] = self.best[kind] if self.left else late
        elif seconds > LATE * self.best.get(kind, seconds):
            self.late[kind] = seconds
        else:
            if len(self.best) >= KINDS:
                self.best.clear()
            self.best[kind] = min(seconds, self.best.get(kind, seconds))
