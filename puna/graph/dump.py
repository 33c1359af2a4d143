"""A graph as text, one node a line."""

from __future__ import annotations

from puna.graph.node import Graph

__all__ = ["dump"]


def dump(graph: Graph) -> str:
    """Lines such as `%7 = linear(%5, blk.0.attn_q.weight) -> f32[T, 576]`."""
    names: dict[object, str] = {}
    lines: list[str] = []
    for node in graph.nodes:
        if node.op == "weight":
            names[node] = str(node.attrs["tensor"])
            continue
        names[node] = f"%{len(lines)}"
        terms = [names[n] for n in node.inputs] + [f"{key}={value}" for key, value in node.attrs.items()]
        lines.append(f"{names[node]} = {node.op}({', '.join(terms)}) -> {node.type}")
    return "\n".join(lines)
