"""Relative position biases: what a score gets for the distance of its key (Raffel et al. 2020, arXiv:1910.10683)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from puna.graph.node import Node

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FAR", "bias_of", "biases", "bucket", "sinks_of"]

FAR = 128  # from this distance on all are one


def bucket(distance: int, count: int, both_ways: bool) -> int:
    """Which of `count` biases a key is given at a distance, its position less the query's.

    Small distances have one each, larger ones share them, the more the farther. both_ways: half of them are for keys
    ahead of the query; else those count as none away.
    """
    start, away = 0, max(0, -distance)
    if both_ways:
        count //= 2
        start, away = count * (distance > 0), abs(distance)
    exact = count // 2
    if away < exact:
        return start + away
    # A power of two may come out just below its whole number.
    steps = math.log(away / exact) / math.log(FAR / exact) * (count - exact)
    return start + min(exact + math.floor(steps + 1e-9), count - 1)


def biases(node: Node, table: NDArray[Any]) -> NDArray[Any]:
    """The biases of an attention by distance: float32 [heads, 2 * FAR + 1] for -FAR to FAR. table: [buckets, heads]."""
    import numpy as np

    both_ways = not node.attrs.get("causal", True)
    chosen = [bucket(distance, len(table), both_ways) for distance in range(-FAR, FAR + 1)]
    return np.ascontiguousarray(table[chosen].T, np.float32)


def extra(node: Node, rank: int) -> Node | None:
    return next((n for n in node.inputs[2:] if n.type.dtype != "i32" and len(n.type.shape) == rank), None)


def sinks_of(node: Node) -> Node | None:
    """An attention's sinks, f32 [heads], where it has them."""
    return extra(node, 1)


def bias_of(node: Node) -> Node | None:
    """An attention's relative position biases, f32 [buckets, heads], where it has them."""
    return extra(node, 2)
