"""What is dropped when the context is full, so that a text can go on: the older half of what need not stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from puna.errors import RequestError

__all__ = ["Shift", "shift_for"]


@dataclass(frozen=True)
class Shift:
    """keep: tokens at the beginning that stay."""

    keep: int

    def half(self, held: int) -> int:
        """How many of `held` tokens, which fill the context, are dropped; 0 where all must stay."""
        return max(0, (held - self.keep) // 2)

    def drop(self, tokens: Sequence[int], count: int) -> list[int]:
        """The tokens without the `count` after those that stay."""
        return [*tokens[: self.keep], *tokens[self.keep + count :]]

    def times(self, tokens: Sequence[int], room: int) -> int:
        """How often a context of `room`, of which half of something may go, is full before all tokens are in it."""
        over = len(tokens) - room
        return -(-over // self.half(room)) if over > 0 else 0


def shift_for(context_shift: bool, keep: int, prompt: Sequence[int], bos: int | None) -> Shift | None:
    """The shift that was asked for. keep: tokens beside a beginning mark; -1, or more than there are, for all.

    Raises RequestError for a number that cannot be.
    """
    if not isinstance(keep, int) or keep < -1:
        raise RequestError(f"{keep!r} is no number of tokens", where="keep (--keep)", fix="use -1 or more")
    if not context_shift:
        if keep:
            fix = "give context_shift (--context-shift)"
            raise RequestError("nothing is dropped, so all is kept", where="keep (--keep)", fix=fix)
        return None
    marked = keep + (prompt[:1] == [bos])
    return Shift(len(prompt) if not 0 <= keep <= len(prompt) else min(marked, len(prompt)))
