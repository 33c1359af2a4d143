"""The four memory regions, known to the byte before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Mapping

from puna.errors import RequestError
from puna.plan.plan import Plan

__all__ = [
    "DEFAULT_CONTEXT",
    "context_length",
    "positive",
    "regions",
    "thread_count",
]

DEFAULT_CONTEXT = 4096
MOST_POSITIONS = 2**31 - 1  # positions are int32
MOST_THREADS = 8  # to a core; more only get in each other's way


def context_length(asked: int | None, trained: int) -> int:
    """Positions of the cache: as asked, for 0 all that the model was trained on, for None that up to 4096."""
    if asked is not None and not 0 <= asked <= MOST_POSITIONS:
        fix = f"use 0 to {MOST_POSITIONS}"
        raise RequestError(f"a context of {asked} is impossible", where="n_ctx (-c)", fix=fix)
    return min(trained, DEFAULT_CONTEXT) if asked is None else asked or trained


def thread_count(asked: int | None) -> int | None:
    """A number of threads that this machine can put to use, or None. Raises RequestError for any other."""
    most = MOST_THREADS * (os.cpu_count() or 1)
    if asked is not None and not 1 <= asked <= most:
        raise RequestError(f"{asked} threads are impossible", where="threads (-t)", fix=f"use 1 to {most}")
    return asked


def positive(value: int, where: str) -> int:
    if value < 1:
        raise RequestError(f"{value} is too few", where=where, fix="use 1 or more")
    return value


def regions(plan: Plan, weights: int) -> Mapping[str, int]:
    """Bytes by region; the logits of one row are counted with the compute buffer."""
    logits = plan.graph.output.type.count(1, 1) * 4
    return {
        "weights": weights,
        "compute": plan.compute + logits,
        "kv": plan.kv.nbytes,
        "scratch": plan.scratch,
    }
