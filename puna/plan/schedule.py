"""The order of a step: stages that follow one another, each of records that may run side by side."""

from __future__ import annotations

from collections.abc import Collection

from puna.graph import Graph, Node

__all__ = ["FREE", "Stage", "schedule"]

# Nodes that a backend runs as one kernel call.
Group = tuple[Node, ...]
Stage = tuple[Group, ...]
# What needs no kernel: the file's tensors, the step's tokens, the same bytes under another shape.
FREE = frozenset({"weight", "tokens", "reshape"})


def schedule(graph: Graph, row_ops: Collection[str] = ()) -> tuple[Stage, ...]:
    """Stages of all nodes that need a kernel, each stage after those that make its operands.

    row_ops: operations that treat each row by itself. A chain of them becomes one group: whoever runs it takes a row
    through all of its nodes before the next row.
    """
    stages: list[Stage] = []
    done = {node for node in graph.nodes if node.op in {"weight", "tokens"}}
    left = [node for node in graph.nodes if node not in done]
    while left:
        for dim in ("T", "R"):
            group = take_rows(left, done, row_ops, dim)
            if group:
                stages.append((group,))
        settle(left, done)
        ready = [n for n in left if n.op not in row_ops and all(i in done for i in n.inputs)]
        if ready:
            stages.append(tuple((n,) for n in ready))
            done.update(ready)
            left[:] = [n for n in left if n not in done]
        settle(left, done)
    return tuple(stages)


def take_rows(left: list[Node], done: set[Node], row_ops: Collection[str], dim: str) -> Group:
    """Move as many row operations over `dim` as can run as one group from `left` to `done`."""
    group: list[Node] = []
    before = set(done)
    for node in list(left):
        if node.op == "reshape" and node.inputs[0] in done:
            done.add(node)
            continue
        # select reads other rows than it writes, so what it reads must be complete.
        known = before if node.op == "select" else done
        rows = node.inputs[0].type.shape[0] if node.op == "kv_store" else node.type.shape[0]
        if node.op in row_ops and rows == dim and all(n in known for n in node.inputs):
            group.append(node)
            done.add(node)
    left[:] = [n for n in left if n not in done]
    return tuple(group)


def settle(left: list[Node], done: set[Node]) -> None:
    """What needs no kernel is done with its operand."""
    for node in list(left):
        if node.op == "reshape" and node.inputs[0] in done:
            done.add(node)
    left[:] = [n for n in left if n not in done]
