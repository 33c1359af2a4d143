"""What is made of the rows that a model computes for a text: logits, or one embedding, or as many as it has tokens."""

from __future__ import annotations

from puna.errors import RequestError
from puna.models.keys import Keys

__all__ = ["AUTO", "POOLINGS", "chosen", "pooling"]

# By number in a file: every row, their mean, the first, the last; or scores, by a classifier.
POOLINGS = ("none", "mean", "cls", "last", "rank")
AUTO = "auto"
UNSPECIFIED = (-1, 2**32 - 1)


def pooling(keys: Keys) -> str | None:
    """The pooling that a file was trained with, None where it does not tell."""
    value = keys.metadata.integer(keys.name("pooling_type"), default=-1)
    if value in UNSPECIFIED:
        return None
    if not 0 <= value < len(POOLINGS):
        raise keys.error("pooling_type", f"no pooling has the number {value}")
    return POOLINGS[value]


def chosen(asked: str | None, own: str | None, has_head: bool) -> str | None:
    """How a model is to pool, None where it is to give logits.

    asked: one of POOLINGS, AUTO for the file's own, None for logits where the model gives any.
    """
    if asked is None and has_head:
        return None
    if asked in (None, AUTO):
        return own or "none"
    if asked not in POOLINGS:
        what = f"no pooling is called {asked!r}"
        raise RequestError(
            what, where="pooling (--pooling)", fix=f"use {AUTO} or one of {', '.join(POOLINGS)}"
        )
    return asked
