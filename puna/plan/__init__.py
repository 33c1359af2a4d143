"""From a graph to kernel calls with placed buffers."""

from __future__ import annotations

from puna.plan.batch import Batch, Segment, Span
from puna.plan.kv import PAGE, KVGroup, KVLayout
from puna.plan.memory import REGIONS, alignment, context_length, positive, regions, thread_count
from puna.plan.passes import PASSES, expand, lower, rotate_keys
from puna.plan.plan import Buffer, Plan, Record, make_plan
from puna.plan.schedule import FREE

__all__ = [
    "FREE",
    "PAGE",
    "PASSES",
    "REGIONS",
    "Batch",
    "Buffer",
    "KVGroup",
    "KVLayout",
    "Plan",
    "Record",
    "Segment",
    "Span",
    "alignment",
    "context_length",
    "expand",
    "lower",
    "make_plan",
    "positive",
    "regions",
    "rotate_keys",
    "thread_count",
]
