"""Operations with a state, by their definitions: position after position, all heads at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.reference.step import Step
from puna.graph import Node, state_shape

__all__ = ["RECURRENT", "recurrent_bytes"]

Array = NDArray[Any]


def recurrent_bytes(node: Node, tokens: int) -> int:
    """Bytes that a kernel here takes for itself: its inputs again, or a few times the state."""
    shape = state_shape(node)
    rows = (tokens + shape[0]) * shape[1] * 2 if node.op in {"conv", "previous"} else 0
    return 4 * (rows + 3 * int(np.prod(shape)))


def segments(step: Step, node: Node) -> Iterator[tuple[slice, Array]]:
    """The rows of each segment, and its state: to be changed in place, and kept where the segment ends."""
    slots = step.states[cast(str, node.attrs["state"])]
    for span in step.batch.spans:
        for segment in span.segments:
            state = slots[segment.target]
            state[...] = slots[segment.source]
            yield slice(segment.start, segment.start + segment.count), state


def conv(step: Step, node: Node, out: Array, x: Array, w: Array) -> None:
    w, apart = w.reshape(x.shape[1], -1), cast(int, node.attrs.get("apart", 1))
    for rows, state in segments(step, node):
        known = np.concatenate([state, x[rows]])  # [n - 1 + count, channels]
        count = len(known) - len(state)
        out[rows] = sum(known[j * apart :][:count] * w[:, j] for j in range(w.shape[1]))
        state[...] = known[count:]


def scan(
    step: Step, node: Node, out: Array, x: Array, b: Array, c: Array, a: Array, dt: Array | None = None
) -> None:
    each = x.shape[1] // b.shape[1]  # heads of a group
    dt = np.ones(x.shape[:2], np.float32) if dt is None else dt
    for rows, state in segments(step, node):  # [heads, size of x, size of b]
        for t in range(rows.start, rows.stop):
            state *= np.exp(dt[t, :, None] * a)[:, None, :]
            state += (dt[t, :, None] * x[t])[:, :, None] * np.repeat(b[t], each, axis=0)[:, None, :]
            out[t] = np.matmul(state, np.repeat(c[t], each, axis=0)[:, :, None])[:, :, 0]


def delta(
    step: Step, node: Node, out: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array
) -> None:
    shared = np.arange(v.shape[1])
    shared = shared % q.shape[1] if node.attrs.get("tiled") else shared // (v.shape[1] // q.shape[1])
    for rows, state in segments(step, node):  # [heads, size of k, size of v]
        for t in range(rows.start, rows.stop):
            state *= np.exp(decay[t])[:, :, None]
            key = k[t, shared][:, None, :]
            change = beta[t] * (v[t] - np.matmul(key, state)[:, 0])  # [heads, size of v]
            state += key.transpose(0, 2, 1) * change[:, None, :]
            out[t] = np.matmul(q[t, shared][:, None, :], state)[:, 0]


def ngrams(step: Step, node: Node, out: Array, ids: Array) -> None:
    factors, sizes, starts = (
        np.array(node.attrs[name], np.uint64) for name in ("factors", "sizes", "starts")
    )
    end, each = cast(int, node.attrs["end"]), len(sizes) // (len(factors) - 1)
    for rows, state in segments(step, node):
        kept = state.view(np.int32)[:, 0]  # the latest last
        known = np.concatenate([kept - 1, ids[rows]])
        cut = np.zeros(rows.stop - rows.start, bool)
        mixed = ids[rows].astype(np.uint64) * factors[0]
        for n in range(1, len(factors)):
            back = known[len(kept) - n : len(known) - n]
            cut |= (back < 0) | (back == end)
            mixed ^= np.where(cut, end, back).astype(np.uint64) * factors[n]
            part = slice((n - 1) * each, n * each)
            out[rows, part] = mixed[:, None] % sizes[part] + starts[part]
        kept[:] = known[len(known) - len(kept) :] + 1


def pool(
    step: Step, node: Node, out: Array, x: Array, scores: Array, offsets: Array, positions: Array
) -> None:
    every, size, out[:] = cast(int, node.attrs["every"]), out.shape[1], 0
    for rows, state in segments(step, node):  # [positions, x and scores, channels]
        for t in range(rows.start, rows.stop):
            position, kept = int(positions[t]), len(state)
            state[position % kept] = x[t], scores[t] + offsets[position % every]
            if (position + 1) % every:
                continue
            back = np.arange(position + 1 - every, position + 1)
            known = state[back % kept]
            if kept > every:
                before = (
                    state[(back - every) % kept][..., :size] if position >= every else state[:0, :, :size]
                )
                known = np.concatenate([before, known[..., size:]])
            weights = np.exp(known[:, 1] - known[:, 1].max(axis=0))
            out[t] = (weights * known[:, 0]).sum(axis=0) / weights.sum(axis=0)


def previous(step: Step, node: Node, out: Array, x: Array) -> None:
    for rows, state in segments(step, node):
        known = np.concatenate([state, x[rows]])
        out[rows], state[...] = known[:-1], known[-1:]


def wkv(
    step: Step, node: Node, out: Array, r: Array, k: Array, v: Array, decay: Array, first: Array | None = None
) -> None:
    for rows, state in segments(step, node):  # [heads, size of k, size of v]
        for t in range(rows.start, rows.stop):
            new = k[t, :, :, None] * v[t, :, None, :]
            if first is not None:
                out[t] = np.matmul(r[t, :, None, :], state + first[:, :, None] * new)[:, 0]
            state *= np.exp(decay[t])[:, :, None]
            state += new
            if first is None:
                out[t] = np.matmul(r[t, :, None, :], state)[:, 0]


def wkv7(step: Step, node: Node, out: Array, *operands: Array) -> None:
    r, k, v, decay, a, b = operands
    for rows, state in segments(step, node):  # [heads, size of k, size of v]
        for t in range(rows.start, rows.stop):
            found = np.matmul(a[t, :, None, :], state)  # [heads, 1, size of v]
            state *= np.exp(decay[t])[:, :, None]
            state += k[t, :, :, None] * v[t, :, None, :] + b[t, :, :, None] * found
            out[t] = np.matmul(r[t, :, None, :], state)[:, 0]


RECURRENT: Mapping[str, Callable[..., None]] = {
    "conv": conv,
    "delta": delta,
    "ngrams": ngrams,
    "pool": pool,
    "previous": previous,
    "scan": scan,
    "wkv": wkv,
    "wkv7": wkv7,
}
