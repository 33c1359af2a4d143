"""Hyper-connections (Zhu et al. 2024, arXiv:2409.19606): residual streams that blocks read and write by weights.

A block reads a weighted sum of the streams, and what it makes is added to each of them by a weight of its own. Both
sets of weights are made from the streams themselves.
"""

from __future__ import annotations

from typing import cast

from puna.graph import Node, make
from puna.models.blocks import linear
from puna.models.weights import Parameter

__all__ = ["KEYS", "gates", "read", "spread", "write"]

# What an architecture with hyper-connections reads.
KEYS = ("hyper_connection.count", "hyper_connection.epsilon", "hyper_connection.magnitude")


def spread(x: Node, n: int) -> Node:
    """n streams that all begin as x [T, width]: [T, n, width]."""
    width = cast(int, x.type.shape[1])
    one = many = make("reshape", x, shape=(x.type.shape[0], 1, width))
    for _ in range(n - 1):
        many = make("cat", many, one)
    return make("reshape", many, shape=(x.type.shape[0], n, width))


def gates(x: Node, fn: Parameter, scale: Parameter, base: Parameter, sets: int, *, eps: float) -> Node:
    """`sets` gates between 0 and 1 for each of the streams x [T, n, width]: [T, sets * n].

    fn: from normed streams to gates.  scale: one factor for each set.  base: added to each gate.
    """
    rows, n, width = x.type.shape
    n, width = cast(int, n), cast(int, width)
    flat = make("normalize", make("reshape", x, shape=(rows, n * width)), kind="rms", eps=eps)
    y = make("reshape", linear(flat, fn, sets * n), shape=(rows, sets, n)) * scale.weight(sets, 1)
    return make("act", make("reshape", y, shape=(rows, sets * n)) + base.weight(sets * n), kind="sigmoid")


def read(x: Node, weights: Node) -> Node:
    """The sum of the streams x [T, n, width] by weights [T, n]: [T, width]."""
    return make("weighted_sum", x, weights)


def write(x: Node, y: Node, weights: Node) -> Node:
    """Add y [T, width], times weights [T, n], to the streams x [T, n, width]."""
    rows, n, width = x.type.shape
    each = make("reshape", weights, shape=(rows, n, 1))
    return x + make("weighted_sum", make("reshape", y, shape=(rows, 1, width)), each)
