"""A computation as data: typed nodes, and a graph of them.

A node names an operation of `puna.graph.ops`, its input nodes and its attributes. Nodes are immutable and compared by
identity. Shapes are in NumPy order, slowest dimension first. Two dimensions are symbolic, so that a graph is
built once and run at any size: "T", the tokens of a step (rows of all sequences together), and "R", those of its
rows whose logits are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from types import MappingProxyType

__all__ = ["Dim", "Graph", "Node", "Type", "make"]

Dim = int | str


@dataclass(frozen=True)
class Type:
    """What a value is: `dtype` is "f32", "i32", "kv" or, for a weight, the name of its quantisation type."""

    dtype: str
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def count(self, tokens: int, rows: int) -> int:
        """Number of values when "T" is `tokens` and "R" is `rows`."""
        return prod(self.resolve(tokens, rows))

    def resolve(self, tokens: int, rows: int) -> tuple[int, ...]:
        """The shape with numbers in place of "T" and "R"."""
        sizes = {"T": tokens, "R": rows}
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.shape)


@dataclass(frozen=True, eq=False)
class Node:
    """One operation: `op` is a key of the ops table, `inputs` its operands, `attrs` its constants."""

    op: str
    inputs: tuple[Node, ...]
    type: Type
    attrs: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def __add__(self, other: Node) -> Node:
        return make("add", self, other)

    def __mul__(self, other: Node | float) -> Node:
        return make("mul", self, other) if isinstance(other, Node) else make("scale", self, by=float(other))

    def __repr__(self) -> str:
        return f"<{self.op} {self.type}>"


def make(op: str, *inputs: Node, **attrs: object) -> Node:
    """A node of the ops table, its type worked out by the table's rule.

    Raises SpecError when the operands do not fit the operation.
    """
    from puna.graph.ops import OPS

    definition = OPS[op]
    return Node(op, inputs, definition.infer([node.type for node in inputs], attrs), MappingProxyType(attrs))


@dataclass(frozen=True)
class Graph:
    """The nodes that `output` depends on. `output` is f32 ["R", vocabulary]: the logits."""

    output: Node

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, each after its inputs; the order is fixed by the graph alone."""
        done: dict[Node, None] = {}
        stack: list[tuple[Node, Iterator[Node]]] = [(self.output, iter(self.output.inputs))]
        while stack:
            node, rest = stack[-1]
            following = next((n for n in rest if n not in done), None)
            if following is None:
                done[node] = None
                stack.pop()
            else:
                stack.append((following, iter(following.inputs)))
        return tuple(done)

    @cached_property
    def users(self) -> Mapping[Node, tuple[Node, ...]]:
        """The nodes that read each node, once each."""
        found: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for operand in dict.fromkeys(node.inputs):
                found.setdefault(operand, []).append(node)
        return {node: tuple(users) for node, users in found.items()}

    @property
    def weights(self) -> tuple[Node, ...]:
        """The weight nodes, in order of first use."""
        return tuple(node for node in self.nodes if node.op == "weight")
