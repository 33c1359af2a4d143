"""The order of a step: stages that follow one another, each of records that may run side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from puna.graph import Graph, Node, encodes

__all__ = ["FREE", "Stage", "schedule"]

# Nodes that a backend runs as one kernel call.
Group = tuple[Node, ...]
Stage = tuple[Group, ...]
# What needs no kernel: the file's tensors, what the step gives, the same bytes under another shape.
FREE = frozenset({"weight", "constant", "tokens", "positions", "types", "reshape"})


def schedule(graph: Graph, row_ops: Collection[str] = ()) -> tuple[Stage, ...]:
    """Stages of all nodes that need a kernel, each stage after those that make its operands.

    row_ops: operations that treat each row by itself. A chain of them becomes one group: whoever runs it takes a row
    through all of its nodes before the next row. An encoder comes first, and no group has nodes of both parts.
    """
    stages: list[Stage] = []
    ready = Ready(graph, row_ops)
    while ready:
        stages.extend((group,) for dim in ("T", "R") if (group := ready.take_rows(dim)))
        if heavy := ready.take_heavy():
            stages.append(tuple((node,) for node in heavy))
        if not ready:
            ready.release()
    return tuple(stages)


class Ready:
    """The nodes whose operands are made, by how they will run. Time and memory are linear in the graph."""

    def __init__(self, graph: Graph, row_ops: Collection[str]) -> None:
        self.graph, self.row_ops = graph, row_ops
        self.missing = {node: len(set(node.inputs)) for node in graph.nodes}
        self.rows: dict[str, deque[Node]] = {"T": deque(), "R": deque()}
        self.selects: list[Node] = []
        self.heavy: list[Node] = []
        self.first, self.held = encodes(graph), list[Node]()  # an encoder, and what waits for it
        for node in graph.nodes:
            if not node.inputs:
                self.sort(node)

    def __bool__(self) -> bool:
        return bool(self.rows["T"] or self.rows["R"] or self.selects or self.heavy)

    def sort(self, node: Node) -> None:
        """Put a node whose operands are made where it belongs; what needs no kernel is done at once."""
        if self.first and node not in self.first:
            self.held.append(node)
        elif node.op in FREE:
            self.done(node)
        elif node.op not in self.row_ops:
            self.heavy.append(node)
        elif node.op == "select":  # it reads other rows than it writes, so what it reads must be complete
            self.selects.append(node)
        else:
            dim = node.inputs[0].type.shape[0] if node.op == "kv_store" else node.type.shape[0]
            self.rows[str(dim)].append(node)

    def release(self) -> None:
        """Go on with what is no encoder's."""
        held, self.first, self.held = self.held, frozenset(), []
        for node in held:
            self.sort(node)

    def done(self, node: Node) -> None:
        for user in self.graph.users.get(node, ()):
            self.missing[user] -= 1
            if self.missing[user] == 0:
                self.sort(user)

    def take_rows(self, dim: str) -> Group:
        """All row operations over `dim` that can run as one group."""
        group: list[Node] = []
        if dim == "R":
            self.rows["R"].extend(self.selects)
            self.selects = []
        while self.rows[dim]:
            node = self.rows[dim].popleft()
            group.append(node)
            self.done(node)
        return tuple(group)

    def take_heavy(self) -> list[Node]:
        """All other operations that are ready."""
        taken, self.heavy = self.heavy, []
        for node in taken:
            self.done(node)
        return taken
