"""The two parts of an encoder-decoder: what a step that encodes a text runs, and what one that decodes runs.

They meet in the cache alone: the keys and values of the encoder's results, which the decoder attends to.
"""

from __future__ import annotations

from collections.abc import Iterable

from puna.graph.node import Graph, Node

__all__ = ["MEMORY", "decodes", "encodes", "has_encoder"]

MEMORY = "memory"


def is_border(node: Node) -> bool:
    return node.attrs.get("part") == MEMORY


def has_encoder(graph: Graph) -> bool:
    """Whether a text is encoded before others are decoded."""
    return any(map(is_border, graph.nodes))


def encodes(graph: Graph) -> frozenset[Node]:
    """The nodes that a step runs which encodes; none where there is no encoder."""
    return reached(filter(is_border, graph.nodes), through_border=True)


def decodes(graph: Graph) -> frozenset[Node]:
    """The nodes that any other step runs: what gives the logits, with the encoder's results in the cache."""
    return reached([graph.output], through_border=False)


def reached(ends: Iterable[Node], *, through_border: bool) -> frozenset[Node]:
    """The nodes that `ends` depend on, themselves included."""
    found: set[Node] = set()
    stack = list(ends)
    while stack:
        node = stack.pop()
        if node not in found and (through_border or not is_border(node)):
            found.add(node)
            stack.extend(node.inputs)
    return frozenset(found)
