"""AltUp (Baykal et al. 2023, arXiv:2301.13310): a layer computes one of several streams and predicts the others.

The weights of a prediction and of its correction are made from the stream that is computed.
"""

from __future__ import annotations

import math
from typing import cast

from puna.graph import Node, make
from puna.models.blocks import linear, norm, split
from puna.models.streams import joined, spread, write
from puna.models.weights import Layer, Parameter

__all__ = ["active", "add_to_others", "correct", "length", "merge", "predict", "stack"]

LEAST = 1e-5  # of the mean square that a stream is scaled by


def stack(x: Node, n: int, p: Parameter) -> Node:
    """n streams out of x [T, width]: x itself, and what matrices make of it: [T, n, width]."""
    width = cast(int, x.type.shape[1])
    return make("reshape", joined([x, others(x, spread(x, n - 1), p)]), shape=("T", n, width))


def merge(x: Node, p: Parameter) -> Node:
    """The mean of the streams x [T, n, width], the first as it is and the others through matrices: [T, width]."""
    n, width = cast("tuple[int, int]", x.type.shape[1:])
    flat = make("reshape", x, shape=("T", n * width))
    first, rest = split(flat, (width, (n - 1) * width))
    y = joined([first, others(first, make("reshape", rest, shape=("T", n - 1, width)), p)])
    return make("weighted_sum", make("reshape", y, shape=("T", n, width))) * (1.0 / n)


def others(like: Node, x: Node, p: Parameter) -> Node:
    """Streams x [T, n, width] through a matrix each, brought to the length of `like` [T, width]: [T, n * width]."""
    n, width = cast("tuple[int, int]", x.type.shape[1:])
    y = make("linear_heads", x, p.weight(n, width, width))
    y = make("normalize", y, kind="l2", eps=math.sqrt(LEAST * width))
    return make("reshape", y, shape=("T", n * width)) * length(like)


def length(x: Node) -> Node:
    """The Euclidean length of the last dimension: [T, 1]."""
    return make("act", make("sum", x * x), kind="signed_root")


def active(x: Node, index: int) -> Node:
    """One of the streams x [T, n, width]: [T, width]."""
    n, width = cast("tuple[int, int]", x.type.shape[1:])
    return make("slice", make("reshape", x, shape=("T", n * width)), start=index * width, size=width)


def router(x: Node, l: Layer, n: int) -> Node:
    """What weights are made from, out of the stream x [T, width]: [T, n]."""
    y = norm(x, l.altup_router_norm) * (1.0 / l.config.n_embd)
    return make("act", linear(y, l.altup_router, n), kind="tanh")


def predict(x: Node, l: Layer, index: int) -> Node:
    """Each of the streams x [T, n, width], plus a weighted sum of all: the same shape."""
    n = cast(int, x.type.shape[1])
    weights = linear(router(active(x, index), l, n), l.altup_predict_coef, n * n)
    return x + make("weighted_sum", x, make("reshape", weights, shape=("T", n, n)))


def correct(x: Node, y: Node, l: Layer, index: int) -> Node:
    """Add what the computed stream, now y [T, width], was wrong by to all predictions x [T, n, width], weighted."""
    n = cast(int, x.type.shape[1])
    weights = linear(router(y, l, n), l.altup_correct_coef, n)
    return write(x, y + active(x, index) * -1.0, make("shift", weights, by=1.0))


def add_to_others(x: Node, y: Node) -> Node:
    """Add y [T, width] to each of the streams x [T, n, width] but the first."""
    n = cast(int, x.type.shape[1])
    return x + spread(y, n) * make("constant", values=(0.0, *[1.0] * (n - 1)), shape=(n, 1))
