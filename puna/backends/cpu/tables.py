"""What a step gives its kernels, at addresses that never change: ids, positions, slots, angles, attention's items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.cpu.kernels.scores import LANES
from puna.backends.cpu.kernels.shapes import BIASES, ITEM_BYTES
from puna.backends.cpu.kernels.walks import SEGMENT_BYTES, SPAN_BYTES
from puna.backends.cpu.memory import Allocate, allocate
from puna.graph import Node, Rope, bias_of, biases, slopes
from puna.plan import Batch, Plan

__all__ = ["Tables", "table_bytes"]

ITEM_ROWS = 8  # rows of a prefill that attention takes as one item


class GroupTables:
    """What a group of layers is given. slots: int64, page * PAGE + offset of each row.  items: attention's."""

    def __init__(self, tokens: int, take: Allocate) -> None:
        self.slots = take(tokens * 8).view(np.int64)
        self.pages = allocate(0).view(np.int32)
        # Every row its own sequence is the worst case, and one more for the rest of each.
        self.items = take(tokens * ITEM_BYTES).view(np.int64).reshape(-1, ITEM_BYTES // 8)

    def fill(self, batch: Batch, group: int, page: int, most: int) -> int:
        """Cut each sequence's rows into items of at most `most`; write slots and page tables. Gives the items."""
        tables = [span.pages[group] for span in batch.spans]
        needed = sum(map(len, tables))
        if needed > len(self.pages):
            self.pages = allocate(2 * needed * 4).view(np.int32)
        at = item = 0
        for span, pages in zip(batch.spans, tables, strict=True):
            self.pages[at : at + len(pages)] = pages
            address = self.pages.ctypes.data + 4 * at
            at += len(pages)
            rows = np.arange(span.past, span.length)
            self.slots[span.start : span.start + span.count] = (
                pages[rows // page].astype(np.int64) * page + rows % page
            )
            for first in range(0, span.count, most):
                size = min(most, span.count - first)
                self.items[item] = (
                    span.start + first,
                    size,
                    span.past + first,
                    address,
                    span.length,
                    span.border,
                )
                item += 1
        return item


class Tables:
    """Filled before each step; sized by the plan alone. tokens, positions, types, outputs: int32.  groups: of layers.

    spans, segments: what operations with a state walk over, of as many `sequences`.
    """

    def __init__(
        self, plan: Plan, weights: Mapping[str, NDArray[Any]] | None, take: Allocate | None = None
    ) -> None:
        """weights: None for tables that are counted, not used."""
        self.plan, self.take = plan, take or allocate
        self.tokens, self.positions, self.types, self.outputs = (
            self.take(count * 4).view(np.int32) for count in (*[plan.tokens] * 3, plan.rows)
        )
        self.groups = [GroupTables(plan.tokens, self.take) for _ in plan.kv.groups]
        blocks = {(plan.kv.group_of[layer], every) for layer, every in plan.kv.every.items()}
        self.blocks = {key: self.take(plan.tokens * 8).view(np.int64) for key in sorted(blocks)}
        most, self.sequences = plan.tokens if plan.kv.states else 0, 0
        self.spans = self.take(most * SPAN_BYTES).view(np.int64).reshape(-1, 2)
        self.segments = self.take(2 * most * SEGMENT_BYTES).view(np.int64).reshape(-1, 4)
        self.angles: dict[tuple[Rope, str], tuple[NDArray[np.float64], NDArray[np.float32]]] = {}
        self.tempers: dict[tuple[int, float, int], NDArray[np.float32]] = {}
        self.slopes: dict[tuple[int, float], NDArray[np.float32]] = {}
        self.biases = {
            key: self.take(heads * BIASES * 4).view(np.float32)
            for key, heads in {
                bias_key(n): cast(int, n.type.shape[1])
                for n in plan.graph.nodes
                if n.op == "attend" and bias_of(n)
            }.items()
        }
        self.constants: dict[tuple[float, ...], NDArray[np.float32]] = {}
        self.counts: dict[int, NDArray[np.int32]] = {}
        for node in plan.graph.nodes:
            if node.op == "rope" and angle_key(node) not in self.angles:
                rule = cast(Rope, node.attrs["rope"])
                has_factors = len(node.inputs) > 1 and weights is not None
                factors = weights[cast(str, node.inputs[1].attrs["tensor"])] if has_factors else None  # type: ignore[index]
                table = (
                    self.take(plan.tokens * rule.dims * 4).view(np.float32).reshape(plan.tokens, rule.dims)
                )
                self.angles[angle_key(node)] = rule.frequencies(factors), table
            if node.op == "attend" and (bias := bias_of(node)) and weights is not None:
                by_distance = biases(
                    node, weights[cast(str, bias.attrs["tensor"])].reshape(bias.type.resolve(0, 0))
                )
                table = self.biases[bias_key(node)].reshape(-1, BIASES)
                table[:] = np.pad(by_distance, ((0, 0), (LANES, LANES - 1)), mode="edge")
            if node.op == "linear_heads":
                self.each(cast(int, node.type.shape[1]))
            if node.op == "temper" and temper_key(node) not in self.tempers:
                self.tempers[temper_key(node)] = self.take(plan.tokens * 4).view(np.float32)

    def addresses(self, node: Node) -> tuple[int, ...]:
        """The tables that a row operation reads."""
        if node.op == "embed":
            given = getattr(self, node.inputs[1].op, None)  # or made by an operation
            return () if given is None else (given.ctypes.data,)
        if node.op == "select":
            return (self.outputs.ctypes.data,)
        if node.op == "kv_store":
            layer, kv = cast(int, node.attrs["layer"]), self.plan.kv
            group, every = kv.group_of[layer], kv.every.get(layer)
            slots = self.blocks[group, every] if every else self.groups[group].slots
            return (slots.ctypes.data,)
        if node.op == "rope":
            return (self.angles[angle_key(node)][1].ctypes.data,)
        return (self.tempers[temper_key(node)].ctypes.data,) if node.op == "temper" else ()

    def constant(self, values: tuple[float, ...]) -> int:
        """The address of some numbers, f32."""
        if values not in self.constants:
            self.constants[values] = np.array(values, np.float32)
        return int(self.constants[values].ctypes.data)

    def each(self, count: int) -> int:
        """The address of 0 to count - 1, i32, for each token."""
        if count not in self.counts:
            self.counts[count] = self.take(self.plan.tokens * count * 4).view(np.int32)
            self.counts[count].reshape(-1, count)[:] = np.arange(count, dtype=np.int32)
        return int(self.counts[count].ctypes.data)

    def slopes_of(self, node: Node) -> int:
        """The address of an attention's ALiBi slopes, f32 [heads], or biases, f32 [heads, BIASES]; 0 without."""
        if bias_of(node):
            return int(self.biases[bias_key(node)].ctypes.data)
        key = cast(int, node.type.shape[1]), cast(float, node.attrs["alibi"])
        if not key[1]:
            return 0
        if key not in self.slopes:
            self.slopes[key] = np.array(slopes(*key), np.float32)
        return int(self.slopes[key].ctypes.data)

    def fill_spans(self, batch: Batch) -> None:
        parts = [span.segments for span in batch.spans if span.segments]
        self.sequences, at = len(parts), 0
        for n, segments in enumerate(parts):
            self.spans[n] = self.segments.ctypes.data + at * SEGMENT_BYTES, len(segments)
            for segment in segments:
                self.segments[at] = segment.start, segment.count, segment.source, segment.target
                at += 1

    def fill_blocks(self, positions: NDArray[np.int32]) -> None:
        """Slots of the last positions of blocks, and -1 for others; once the groups have theirs."""
        page, count = self.plan.kv.page, len(positions)
        for (group, every), slots in self.blocks.items():
            pages = self.groups[group].slots[:count] // page
            slots[:count] = np.where(
                (positions + 1) % every == 0, pages * page + positions % page // every, -1
            )

    def fill(self, batch: Batch, decode: bool) -> int:
        """Take over a batch; gives the number of attention's items."""
        count = len(batch.tokens)
        self.tokens[:count], self.positions[:count] = batch.tokens, batch.positions
        self.outputs[: len(batch.outputs)] = batch.outputs
        for (rule, _), (frequencies, table) in self.angles.items():
            theta = (batch.positions[:, None] + rule.shift) * frequencies
            half = rule.dims // 2
            table[:count, :half], table[:count, half:] = np.cos(theta), np.sin(theta)
            if rule.magnitude != 1.0:
                table[:count] *= np.float32(rule.magnitude)
        for (length, by, offset), factors in self.tempers.items():
            factors[:count] = 1.0 + by * np.log1p(np.floor((batch.positions + offset) / length))
        if self.plan.kv.states:
            self.fill_spans(batch)
        most, page = 1 if decode else ITEM_ROWS, self.plan.kv.page
        items = [group.fill(batch, n, page, most) for n, group in enumerate(self.groups)]
        self.fill_blocks(batch.positions)
        return max(items, default=0)


def table_bytes(plan: Plan) -> int:
    """Bytes of a plan's tables."""
    sizes = list[int]()

    def count(nbytes: int) -> NDArray[np.uint8]:
        sizes.append(nbytes)
        return np.empty(nbytes, np.uint8)

    Tables(plan, None, count)
    return sum(sizes)


def angle_key(node: Node) -> tuple[Rope, str]:
    factors = cast(str, node.inputs[1].attrs["tensor"]) if len(node.inputs) > 1 else ""
    return cast(Rope, node.attrs["rope"]), factors


def bias_key(node: Node) -> tuple[str, bool]:
    bias = bias_of(node)
    assert bias is not None
    return cast(str, bias.attrs["tensor"]), bool(node.attrs.get("causal", True))


def temper_key(node: Node) -> tuple[int, float, int]:
    offset = cast(int, node.attrs.get("offset", 0))
    return cast(int, node.attrs["length"]), cast(float, node.attrs["by"]), offset
