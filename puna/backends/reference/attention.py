"""Keys and values into pages, and attention over them, in blocks of queries that fit a bounded scratch."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.reference.step import Step
from puna.graph import Node, slopes
from puna.plan import KVLayout, Span
from puna.quants import by_name, dequantize, quantize

__all__ = ["attend", "attend_chosen", "index", "kv_store", "scratch_bytes", "unseen"]

Array = NDArray[Any]
# Scores of a block of queries take about this much; one query at a time when even that is more.
SCORES = 32 << 20


def scratch_bytes(node: Node, layout: KVLayout, tokens: int) -> int:
    """Most that a node takes for float32 keys, values, queries and scores, up to `tokens` queries of a sequence."""
    store = next(n for n in node.inputs if n.op == "kv_store")
    heads, key, value = layout.widths[cast(int, store.attrs["layer"])]
    if node.op == "index":
        return 4 * layout.positions * (2 * key + 4 * cast(int, node.inputs[0].type.shape[1]))
    group = cast(int, node.type.shape[1]) // heads
    block = min(tokens, max(1, SCORES // (4 * heads * group * layout.positions)))
    gathered = layout.positions * heads * (key + value)
    return 4 * (gathered + heads * group * block * (layout.positions + key + value))


def kv_store(step: Step, node: Node, out: None, k: Array, v: Array) -> None:
    """Write this step's keys [T, heads, key] and values [T, heads, value] at their positions."""
    types, layer = (step.layout.k_type, step.layout.v_type), cast(int, node.attrs["layer"])
    group = step.layout.group_of[layer]
    for cache, kind, rows in zip(step.cache[layer], types, (k, v), strict=True):
        if not cache.size:  # values that are the beginnings of the keys
            continue
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


def gather(step: Step, layer: int, span: Span, first: int) -> tuple[Array, Array, Array]:
    """Keys and values [length, heads, size] of a sequence from position `first` on, as float32, and scratch left."""
    heads, key, value = step.layout.widths[layer]
    slots = slots_of(span, step.layout.group_of[layer], step.layout.page, first)
    length = span.length - first
    is_shared = layer in step.layout.shared
    sizes = [length * heads * key, 0 if is_shared else length * heads * value]
    places = step.scratch[: sizes[0]], step.scratch[sizes[0] : sum(sizes)]
    found = [
        dequantize(by_name(kind), cache[slots], out=place.reshape(length, -1)).reshape(length, heads, -1)
        for cache, kind, place in zip(
            step.cache[layer], (step.layout.k_type, step.layout.v_type), places, strict=True
        )
        if cache.size
    ]
    return found[0], found[0][..., :value] if is_shared else found[1], step.scratch[sum(sizes) :]


def attend(step: Step, node: Node, out: Array, q: Array, kv: None, sinks: Array | None = None) -> None:
    """softmax(scale * q @ k.T) @ v for q [T, heads, key], over each sequence's own cache; sinks: [heads]."""
    attend_chosen(step, node, out, q, kv, None, sinks)


def attend_chosen(
    step: Step,
    node: Node,
    out: Array,
    q: Array,
    kv: None,
    chosen: Array | None,
    sinks: Array | None = None,
) -> None:
    """The same over the positions `chosen` [T, k], -1 for none, in place of all."""
    layer = cast(int, node.inputs[1].attrs["layer"])
    for span in step.batch.spans:
        first = int(oldest(node, span.past))
        k, v, rest = gather(step, layer, span, first)
        block = max(1, SCORES // (4 * q.shape[1] * step.layout.positions))
        for start in range(span.start, span.start + span.count, block):
            stop = min(start + block, span.start + span.count)
            positions = step.batch.positions[start:stop] - first
            hidden = unseen(node, positions, len(k))
            if chosen is not None:
                hidden |= others(chosen[start:stop] - first, len(k))
            out[start:stop] = attend_block(node, q[start:stop], k, v, positions, hidden, rest, sinks)


def others(chosen: Array, length: int) -> Array:
    """Which of `length` keys are not among the chosen [n, k] of each query: bool [n, length]."""
    left = np.ones((len(chosen), length + 1), bool)  # the last place is for those that are none
    np.put_along_axis(left, np.where(chosen < 0, length, chosen).astype(np.intp), False, axis=-1)
    return left[:, :length]


def index(step: Step, node: Node, out: Array, q: Array, w: Array, kv: None) -> None:
    """The k best positions for q [T, heads, key] and w [T, heads], by the sum of w * relu(q @ k.T) over heads."""
    out[:] = -1
    layer = cast(int, node.inputs[2].attrs["layer"])
    for span in step.batch.spans:
        keys = gather(step, layer, span, 0)[0][:, 0]  # [length, key]
        for t in range(span.start, span.start + span.count):
            count = step.batch.positions[t] + 1
            scores = w[t] @ np.maximum(q[t] @ keys[:count].T, 0)
            best = np.argsort(-scores, kind="stable")[: out.shape[1]]
            out[t, : len(best)] = best


def oldest(node: Node, position: Any) -> Any:
    """The first position that a query at `position` sees. Positions may count from any that begins a chunk."""
    window = cast(int, node.attrs["window"])
    if not window:
        return 0
    if node.attrs.get("chunked"):
        return position - position % window
    if not node.attrs.get("causal", True):
        return np.maximum(0, position - window // 2)
    return np.maximum(0, position - window + 1)


def latest(node: Node, position: Any) -> Any:
    """The last position that a query at `position` sees, where the sequence goes so far."""
    window = cast(int, node.attrs["window"])
    if node.attrs.get("causal", True):
        return position
    return position + window // 2 if window else np.full_like(position, np.iinfo(np.int32).max)


def unseen(node: Node, positions: Array, length: int) -> Array:
    """Which of `length` keys queries at `positions` do not see: bool [n, length]."""
    places = np.arange(length)
    hidden = places > latest(node, positions)[:, None]
    if node.attrs["window"]:
        hidden |= places < oldest(node, positions)[:, None]
    return cast(Array, hidden)


def attend_block(
    node: Node,
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    hidden: Array,
    scratch: Array,
    sinks: Array | None,
) -> Array:
    """Attention of q [n, heads, key] over k, v [length, kv heads, size] but for those hidden [n, length].

    positions: [n], that count from k's first row.
    """
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
    by_head = scores.reshape(heads, n, length)
    if node.attrs["alibi"]:
        slope = np.array(slopes(heads, cast(float, node.attrs["alibi"])), np.float32)
        away = np.abs(np.arange(length) - positions[:, None])  # those ahead count where they are seen at all
        by_head -= slope[:, None, None] * away.astype(np.float32)
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
