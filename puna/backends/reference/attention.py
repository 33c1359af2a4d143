"""Keys and values into pages, and causal attention over them, in blocks of queries that fit a bounded scratch."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.reference.step import Step
from puna.graph import Node, slopes
from puna.plan import KVLayout, Span
from puna.quants import by_name, dequantize, quantize

__all__ = ["attend", "kv_store", "scratch_bytes"]

Array = NDArray[Any]
# Scores of a block of queries take about this much; one query at a time when even that is more.
SCORES = 32 << 20


def scratch_bytes(node: Node, layout: KVLayout, tokens: int) -> int:
    """Most that `attend` takes for float32 keys, values, queries and scores, up to `tokens` queries of a sequence."""
    heads, key, value = layout.widths[cast(int, node.inputs[1].attrs["layer"])]
    group = cast(int, node.type.shape[1]) // heads
    block = min(tokens, max(1, SCORES // (4 * heads * group * layout.positions)))
    gathered = layout.positions * heads * (key + value)
    return 4 * (gathered + heads * group * block * (layout.positions + key + value))


def kv_store(step: Step, node: Node, out: None, k: Array, v: Array) -> None:
    """Write this step's keys [T, heads, key] and values [T, heads, value] at their positions."""
    types, layer = (step.layout.k_type, step.layout.v_type), cast(int, node.attrs["layer"])
    group = step.layout.group_of[layer]
    for cache, kind, rows in zip(step.cache[layer], types, (k, v), strict=True):
        packed = quantize(by_name(kind), rows.reshape(len(rows), -1))
        for span in step.batch.spans:
            slots = slots_of(span, group, step.layout.page, span.past)
            cache[slots] = packed[span.start : span.start + span.count]


def slots_of(span: Span, group: int, page: int, first: int) -> Array | slice:
    """Rows of a layer's cache that hold positions `first` up to the span's length; a slice where they adjoin.

    group: the layer's.
    """
    pages = span.pages[group][first // page : -(-span.length // page)]
    offset = first % page
    count = span.length - first
    if bool((np.diff(pages) == 1).all()):
        start = int(pages[0]) * page + offset
        return slice(start, start + count)
    rows = (pages[:, None].astype(np.intp) * page + np.arange(page)).reshape(-1)
    return cast(Array, rows[offset : offset + count])


def attend(step: Step, node: Node, out: Array, q: Array, kv: None, sinks: Array | None = None) -> None:
    """softmax(scale * q @ k.T) @ v for q [T, heads, key], over each sequence's own cache; sinks: [heads]."""
    layer = cast(int, node.inputs[1].attrs["layer"])
    heads, key, value = step.layout.widths[layer]
    for span in step.batch.spans:
        first = oldest(node, span.past)
        slots = slots_of(span, step.layout.group_of[layer], step.layout.page, first)
        length = span.length - first
        sizes = (length * heads * key, length * heads * value)
        places = step.scratch[: sizes[0]], step.scratch[sizes[0] : sum(sizes)]
        k, v = (
            dequantize(by_name(kind), cache[slots], out=place.reshape(length, -1)).reshape(length, heads, -1)
            for cache, kind, place in zip(
                step.cache[layer], (step.layout.k_type, step.layout.v_type), places, strict=True
            )
        )
        rest = step.scratch[sum(sizes) :]
        group = q.shape[1] // heads
        block = max(1, SCORES // (4 * heads * group * step.layout.positions))
        for start in range(span.start, span.start + span.count, block):
            stop = min(start + block, span.start + span.count)
            positions = step.batch.positions[start:stop] - first
            out[start:stop] = attend_block(node, q[start:stop], k, v, positions, rest, sinks)


def oldest(node: Node, position: Any) -> Any:
    """The first position that a query at `position` sees. Positions may count from any that begins a chunk."""
    window = cast(int, node.attrs["window"])
    if not window:
        return 0
    if node.attrs.get("chunked"):
        return position - position % window
    return np.maximum(0, position - window + 1)


def attend_block(
    node: Node, q: Array, k: Array, v: Array, positions: Array, scratch: Array, sinks: Array | None
) -> Array:
    """Attention of q [n, heads, key] over k, v [length, kv heads, size]; positions [n] count from k's first row."""
    n, heads, size = q.shape
    length, kv_heads, value = v.shape
    group = heads // kv_heads
    # The queries of the heads that share a key/value head stand together: [kv heads, group * n, key].
    shared = q.reshape(n, kv_heads, group, size).transpose(1, 2, 0, 3).reshape(kv_heads, group * n, size)
    scores = scratch[: heads * n * length].reshape(kv_heads, group * n, length)
    np.matmul(shared, k.transpose(1, 2, 0), out=scores)
    scores *= np.float32(cast(float, node.attrs["scale"]))
    cap = cast(float, node.attrs["softcap"])
    if cap:
        scores /= np.float32(cap)
        np.tanh(scores, out=scores)
        scores *= np.float32(cap)
    past = np.arange(length)
    hidden = past > positions[:, None]
    if node.attrs["window"]:
        hidden |= past < oldest(node, positions)[:, None]
    by_head = scores.reshape(heads, n, length)
    if node.attrs["alibi"]:
        slope = np.array(slopes(heads, cast(float, node.attrs["alibi"])), np.float32)
        by_head += slope[:, None, None] * (past - positions[:, None]).astype(np.float32)
    by_head[:, hidden] = -np.inf
    largest = by_head.max(axis=-1, keepdims=True)  # [heads, n, 1]
    if sinks is not None:
        largest = np.maximum(largest, sinks[:, None, None])
    by_head -= largest
    np.exp(by_head, out=by_head)
    total = by_head.sum(axis=-1, keepdims=True)
    by_head /= total if sinks is None else total + np.exp(sinks[:, None, None] - largest)
    mixed: Array = np.matmul(scores, v.transpose(1, 0, 2))  # [kv heads, group * n, value]
    return cast(Array, mixed.reshape(heads, n, value).transpose(1, 0, 2))
