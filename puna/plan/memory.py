"""The four memory regions, known to the byte before anything is allocated."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping

from puna.errors import RequestError
from puna.plan.plan import Plan

__all__ = [
    "DEFAULT_CONTEXT",
    "REGIONS",
    "alignment",
    "context_length",
    "positive",
    "regions",
    "thread_count",
]

DEFAULT_CONTEXT = 4096
MOST_POSITIONS = 2**31 - 1  # positions are int32
LEAST_ALIGNMENT, MOST_ALIGNMENT = 64, 1 << 30
# What people read, in the order of the plan's lines.
REGIONS: Mapping[str, str] = {
    "weights": "weights",
    "compute": "compute buffer",
    "kv": "KV cache",
    "scratch": "scratch",
}
MOST_THREADS = 8  # to a core; more only get in each other's way


def context_length(asked: int | None, trained: int) -> int:
    """Positions of the cache: as asked, for 0 all that the model was trained on, for None that up to 4096.

    Raises RequestError for what is no number of positions.
    """
    if asked is None:
        return min(trained, DEFAULT_CONTEXT)
    where, fix = "n_ctx (-c)", f"use 0 to {MOST_POSITIONS}"
    count = whole(asked, where, fix)
    if not 0 <= count <= MOST_POSITIONS:
        raise RequestError(f"a context of {count} is impossible", where=where, fix=fix)
    return count or trained


def thread_count(asked: int | None) -> int | None:
    """A number of threads that this machine can put to use, or None. Raises RequestError for any other."""
    if asked is None:
        return None
    most = MOST_THREADS * (os.cpu_count() or 1)
    where, fix = "threads (-t)", f"use 1 to {most}"
    count = whole(asked, where, fix)
    if not 1 <= count <= most:
        raise RequestError(f"{count} threads are impossible", where=where, fix=fix)
    return count


def alignment(asked: int | None) -> int:
    """A power of two that buffers begin at multiples of; None takes what kernels want. Raises RequestError."""
    if asked is None:
        return LEAST_ALIGNMENT
    where, fix = "mem_align (--mem-align)", f"use a power of two from {LEAST_ALIGNMENT} to {MOST_ALIGNMENT}"
    count = whole(asked, where, fix)
    if not LEAST_ALIGNMENT <= count <= MOST_ALIGNMENT or count & (count - 1):
        raise RequestError(f"an alignment of {count} is impossible", where=where, fix=fix)
    return count


def positive(value: int, where: str) -> int:
    """A whole number of 1 or more. Raises RequestError for any other."""
    fix = "use 1 or more"
    count = whole(value, where, fix)
    if count < 1:
        raise RequestError(f"{count} is too few", where=where, fix=fix)
    return count


def whole(value: object, where: str, fix: str) -> int:
    """A whole number, of NumPy's too, but no bool. Raises RequestError for anything else."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise RequestError(f"{value!r} is not a whole number", where=where, fix=fix) from None


def regions(plan: Plan, weights: int, tables: int = 0) -> Mapping[str, int]:
    """Bytes by region. The logits of one row, and what a step is given in `tables`, count with the compute buffer."""
    logits = plan.graph.output.type.count(1, 1) * 4
    return {
        "weights": weights,
        "compute": plan.compute + logits + tables,
        "kv": plan.kv.nbytes,
        "scratch": plan.scratch,
    }
