"""Keys and values into pages, and attention over them, in blocks of queries that fit a bounded scratch."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.reference.step import Step
from puna.graph import FAR, Node, bias_of, biases, slopes
from puna.plan import KVLayout, Span
from puna.quants import by_name, dequantize, quantize

__all__ = [
    "attend",
    "attend_both",
    "attend_chosen",
    "index",
    "index_blocks",
    "kv_store",
    "scratch_bytes",
    "unseen",
]

Array = NDArray[Any]
# Scores of a block of queries take about this much; one query at a time when even that is more.
SCORES = 32 << 20


def scratch_bytes(node: Node, layout: KVLayout, tokens: int) -> int:
    """Most that a node takes for float32 keys, values, queries and scores, up to `tokens` queries of a sequence."""
    layers = [cast(int, n.attrs["layer"]) for n in node.inputs if n.op == "kv_store"]
    heads, key, value = layout.widths[layers[0]]
    positions = sum(-(-layout.positions // layout.every.get(layer, 1)) for layer in layers)
    if node.op in {"index", "index_blocks"}:
        return 4 * positions * (2 * key + 4 * cast(int, node.inputs[0].type.shape[1]))
    group = cast(int, node.type.shape[1]) // heads
    block = min(tokens, max(1, SCORES // (4 * heads * group * positions)))
    gathered = positions * heads * (key + value)
    return 4 * (gathered + heads * group * block * (positions + key + value))


def kv_store(step: Step, node: Node, out: None, k: Array, v: Array) -> None:
    """Write this step's keys [T, heads, key] and values [T, heads, value] at their positions."""
    types, layer = (step.layout.k_type, step.layout.v_type), cast(int, node.attrs["layer"])
    every = step.layout.every.get(layer, 1)
    for cache, kind, rows in zip(step.cache[layer], types, (k, v), strict=True):
        if not cache.size:  # values that are the beginnings of the keys
            continue
        packed = quantize(by_name(kind), rows.reshape(len(rows), -1))
        for span in step.batch.spans:
            ends = packed[span.start : span.start + span.count][every - 1 - span.past % every :: every]
            cache[slots_of(step, layer, span, span.past // every)] = ends


def slots_of(step: Step, layer: int, span: Span, first: int) -> Array | slice:
    """Rows of a layer's cache that hold positions `first` up to the span's length; a slice where they adjoin.

    Blocks take the place of positions where the layer keeps one row of each.
    """
    kv, page, table = step.layout, step.layout.page, span.pages[step.layout.group_of[layer]]
    every = kv.every.get(layer, 1)
    if every > 1:
        ends = np.arange(first + 1, span.length // every + 1) * every - 1
        return cast(Array, table[ends // page].astype(np.intp) * kv.rows(layer) + ends % page // every)
    pages = table[first // page : -(-span.length // page)]
    offset = first % page
    count = span.length - first
    if bool((np.diff(pages) == 1).all()):
        start = int(pages[0]) * page + offset
        return slice(start, start + count)
    rows = (pages[:, None].astype(np.intp) * page + np.arange(page)).reshape(-1)
    return cast(Array, rows[offset : offset + count])


def gather(step: Step, span: Span, *parts: tuple[int, int]) -> tuple[Array, Array, Array]:
    """Keys and values [length, heads, size] of a sequence, as float32, and scratch left.

    parts: layers, whose rows follow each other, and the position, or block, from which on each is taken.
    """
    layer = parts[0][0]
    heads, key, value = step.layout.widths[layer]
    slots = [(layer, slots_of(step, layer, span, first)) for layer, first in parts]
    length = sum(span.length // step.layout.every.get(layer, 1) - first for layer, first in parts)
    is_shared = layer in step.layout.shared
    sizes = [length * heads * key, 0 if is_shared else length * heads * value]
    places = step.scratch[: sizes[0]], step.scratch[sizes[0] : sum(sizes)]
    found = []
    for i, kind in enumerate((step.layout.k_type, step.layout.v_type)[: 1 if is_shared else 2]):
        packed = np.concatenate([step.cache[layer][i][rows] for layer, rows in slots])
        place = places[i].reshape(length, heads * (key, value)[i])
        found.append(dequantize(by_name(kind), packed, out=place).reshape(length, heads, (key, value)[i]))
    return found[0], found[0][..., :value] if is_shared else found[1], step.scratch[sum(sizes) :]


def attend(step: Step, node: Node, out: Array, q: Array, kv: None, extra: Array | None = None) -> None:
    """softmax(scale * q @ k.T) @ v for q [T, heads, key], over each sequence's own cache.

    extra: sinks [heads], or relative position biases [buckets, heads].
    """
    attend_chosen(step, node, out, q, kv, None, extra)


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
        first, end = part_of(node, span)
        k, v, rest = gather(step, span, (layer, first))
        k, v = k[: end - first], v[: end - first]
        block = max(1, SCORES // (4 * q.shape[1] * step.layout.positions))
        for start in range(span.start, span.start + span.count, block):
            stop = min(start + block, span.start + span.count)
            positions = step.batch.positions[start:stop] - first
            hidden = unseen(node, positions, len(k))
            if chosen is not None:
                hidden |= others(chosen[start:stop] - first, len(k))
            out[start:stop] = attend_block(node, q[start:stop], k, v, positions, hidden, rest, sinks)


def attend_both(
    step: Step,
    node: Node,
    out: Array,
    q: Array,
    kv: None,
    pooled: None,
    sinks: Array,
    chosen: Array | None = None,
) -> None:
    """The same over a window of one cache together with the blocks `chosen` [T, k] of another, or all of them."""
    layer, other = (cast(int, n.attrs["layer"]) for n in node.inputs[1:3])
    every = step.layout.every[other]
    for span in step.batch.spans:
        first = int(oldest(node, span.past))
        k, v, rest = gather(step, span, (layer, first), (other, 0))
        blocks = span.length // every
        size = max(1, SCORES // (4 * q.shape[1] * len(k)))
        for start in range(span.start, span.start + span.count, size):
            stop = min(start + size, span.start + span.count)
            positions = step.batch.positions[start:stop]
            later = np.arange(blocks) >= (positions[:, None] + 1) // every
            if chosen is not None:
                later |= others(chosen[start:stop], blocks)
            hidden = np.hstack([unseen(node, positions - first, len(k) - blocks), later])
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
    every = step.layout.every.get(layer, 1)
    for span in step.batch.spans:
        keys = gather(step, span, (layer, 0))[0][:, 0]  # [length, key]
        for t in range(span.start, span.start + span.count):
            count = (step.batch.positions[t] + 1) // every
            scores = w[t] @ np.maximum(q[t] @ keys[:count].T, 0)
            best = np.argsort(-scores, kind="stable")[: out.shape[1]]
            out[t, : len(best)] = best


def index_blocks(step: Step, node: Node, out: Array, q: Array, kv: None) -> None:
    """The positions of the k best blocks for q [T, heads, key], by their largest product with any head."""
    out[:] = -1
    layer = cast(int, node.inputs[1].attrs["layer"])
    k, size, local = (cast(int, node.attrs[name]) for name in ("k", "size", "local"))
    for span in step.batch.spans:
        keys = gather(step, span, (layer, 0))[0][:, 0]  # [length, key]
        for t in range(span.start, span.start + span.count):
            count = int(step.batch.positions[t]) + 1
            scores = (q[t] @ keys[:count].T).max(axis=0)
            blocks = np.maximum.reduceat(scores, np.arange(0, count, size))
            blocks[max(0, len(blocks) - local) :] = np.inf
            best = np.sort(np.argsort(-blocks, kind="stable")[:k])
            places = (best[:, None] * size + np.arange(size)).reshape(-1)
            places = places[places < count]
            out[t, : len(places)] = places


def part_of(node: Node, span: Span) -> tuple[int, int]:
    """The first position that some query of a sequence sees, and the first after all that are seen."""
    part = node.inputs[1].attrs.get("part")
    if part in (None, "encoder"):
        return int(oldest(node, span.past)), span.length
    return (0, span.border) if part == "memory" else (span.border, span.length)


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
    extra: Array | None,
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
    cap = cast(float, node.attrs.get("softcap", 0.0))
    if cap:
        scores /= np.float32(cap)
        np.tanh(scores, out=scores)
        scores *= np.float32(cap)
    by_head = scores.reshape(heads, n, length)
    if node.attrs.get("alibi"):
        slope = np.array(slopes(heads, cast(float, node.attrs["alibi"])), np.float32)
        away = np.abs(np.arange(length) - positions[:, None])  # those ahead count where they are seen at all
        by_head -= slope[:, None, None] * away.astype(np.float32)
    sinks = None if bias_of(node) else extra
    if extra is not None and sinks is None:
        places = np.clip(np.arange(length) - positions[:, None], -FAR, FAR) + FAR
        for own, bias in zip(by_head, biases(node, extra), strict=True):
            own += bias[places]
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
