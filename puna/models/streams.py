"""Hyper-connections (Zhu et al. 2024, arXiv:2409.19606): residual streams that blocks read and write by weights.

A block reads a weighted sum of the streams, and what it makes is added to each of them by a weight of its own. Both
sets of weights are made from the streams themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from puna.graph import Node, make
from puna.models.blocks import linear, split
from puna.models.weights import Parameter

__all__ = ["KEYS", "MOST", "gates", "joined", "read", "scores", "spread", "write"]

MOST = 16  # streams
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


def scores(
    x: Node, fn: Parameter, scale: Parameter, base: Parameter, sizes: Sequence[int], *, eps: float
) -> list[Node]:
    """What gates of the streams x [T, n, width] are made of, in sets of these sizes: [T, size] each.

    fn: from normed streams to scores.  scale: one factor for each set.  base: added to each score.
    """
    rows, n, width = cast("tuple[str, int, int]", x.type.shape)
    flat = make("normalize", make("reshape", x, shape=(rows, n * width)), kind="rms", eps=eps)
    found = list[Node]()
    for i, part in enumerate(split(linear(flat, fn, sum(sizes)), sizes)):
        # A row for each factor, of which one is kept.
        every = spread(part, len(sizes)) * scale.weight(len(sizes), 1)
        every = make("reshape", every, shape=(rows, len(sizes) * sizes[i]))
        found.append(make("slice", every, start=i * sizes[i], size=sizes[i]))
    return split(joined(found) + base.weight(sum(sizes)), sizes)


def joined(parts: Sequence[Node]) -> Node:
    """Values [T, any] side by side: [T, sum of all]."""
    rows, size = parts[0].type.shape[0], 0
    whole: Node | None = None
    for part in parts:
        one = make("reshape", part, shape=(rows, 1, part.type.shape[1]))
        whole, size = make("cat", whole, one) if whole else one, size + cast(int, part.type.shape[1])
    assert whole is not None
    return make("reshape", whole, shape=(rows, size))


def read(x: Node, weights: Node) -> Node:
    """The sum of the streams x [T, n, width] by weights [T, n]: [T, width]."""
    return make("weighted_sum", x, weights)


def write(x: Node, y: Node, weights: Node) -> Node:
    """Add y [T, width], times weights [T, n], to the streams x [T, n, width]."""
    rows, n, width = x.type.shape
    each = make("reshape", weights, shape=(rows, n, 1))
    return x + make("weighted_sum", make("reshape", y, shape=(rows, 1, width)), each)
