"""What operations with a state share: a unit of work is a sequence with some part of a row, and walks over its rows.

All of a unit's values depend on no other unit's, and what a row does is the same wherever the rows around it are cut,
so a result depends neither on how a text is fed nor on the number of threads.

Arguments are addresses: 0 result, 8 states, 16 spans, and from 24 on the operands, dense.

    span (16 bytes)      0 address of its first segment   8 count of segments
    segment (32 bytes)   0 first row   8 rows   16 slot of the state before   24 slot of the state after
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.graph import Node

__all__ = ["SEGMENT_BYTES", "SPAN_BYTES", "Rows", "Work", "carry", "operands", "segments", "sizes", "units"]

SPAN_BYTES, SEGMENT_BYTES = 16, 32


@dataclass(frozen=True)
class Work:
    """A kernel, and into how many units it cuts the rows of a sequence."""

    spec: Spec
    parts: int


@dataclass(frozen=True)
class Rows:
    """One segment of a unit. source, target: where its part of the state lies before and after."""

    first: Value
    count: Value
    source: Ptr
    target: Ptr


def units(k: Kernel, parts: int, slot: int) -> Iterator[tuple[Value, Iterator[Rows]]]:
    """For each unit, which part of a sequence it is, and its segments. slot: values of a state."""
    args, begin, end, _ = k.args
    states, spans = args.ptr(8), args.ptr(16)
    for unit in k.loop(begin, end):
        yield unit % parts, segments(k, spans.at(unit // parts * SPAN_BYTES), states, slot * 4)


def segments(k: Kernel, span: Ptr, states: Ptr, slot_bytes: int) -> Iterator[Rows]:
    for n in k.loop(0, span.load("i64", offset=8, align=8)):
        at = span.ptr(0).at(n * SEGMENT_BYTES)
        first, count, source, target = (at.load("i64", offset=8 * i, align=8) for i in range(4))
        yield Rows(first, count, states.at(source * slot_bytes), states.at(target * slot_bytes))


def operands(k: Kernel, count: int) -> list[Ptr]:
    """The result and the operands."""
    return [k.args[0].ptr(0), *(k.args[0].ptr(24 + 8 * i) for i in range(count))]


def carry(k: Kernel, rows: Rows, at: Value, count: int, stride: int, run: tuple[int, int]) -> Ptr:
    """Bring a unit's part of the state to where it is kept after the segment, to be changed there.

    It is `count` runs of some lanes and vectors, `stride` bytes apart, from `at` on.
    """
    lanes, vectors = run
    for i in k.loop(0, count):
        for n in range(vectors):
            place = at + i * stride + n * lanes * 4
            rows.target.store(rows.source.load("f32", lanes, place, 4), place, 4)
    return rows.target.at(at)


def sizes(node: Node) -> tuple[int, ...]:
    return cast("tuple[int, ...]", node.type.shape[1:])
