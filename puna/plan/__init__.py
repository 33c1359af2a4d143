"""From a graph to kernel calls with placed buffers."""

from __future__ import annotations

from puna.plan.batch import Batch, Span
from puna.plan.kv import KVLayout
from puna.plan.memory import context_length, positive, refuse_too_large, regions, thread_count
from puna.plan.passes import PASSES, expand, lower
from puna.plan.plan import Buffer, Plan, Record, make_plan
from puna.plan.schedule import FREE

__all__ = [
    "FREE",
    "PASSES",
    "Batch",
    "Buffer",
    "KVLayout",
    "Plan",
    "Record",
    "Span",
    "context_length",
    "expand",
    "lower",
    "make_plan",
    "positive",
    "refuse_too_large",
    "regions",
    "thread_count",
]
