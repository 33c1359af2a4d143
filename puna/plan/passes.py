"""THE ordered list of passes from a model's graph to the one that is planned.

A pass is a function Graph -> Graph that keeps what the graph means. `PASSES` names them in order; tests run the
spec and the oracle before and after each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from puna.graph import OPS, Graph, Node, make
from puna.graph.node import Type
from puna.quants import by_name

__all__ = ["PASSES", "expand", "lower", "rewrite", "rotate_keys"]

Rewrite = Callable[[Node], "Node | None"]


def rewrite(graph: Graph, rule: Rewrite) -> Graph:
    """Rebuild the graph from its inputs on, putting `rule(node)` in a node's place where it gives one.

    The rule sees nodes whose inputs are already rewritten.
    """
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        inputs = tuple(new[n] for n in node.inputs)
        moved = node if inputs == node.inputs else Node(node.op, inputs, node.type, node.attrs)
        new[node] = rule(moved) or moved
    return Graph(new[graph.output])


def share(graph: Graph) -> Graph:
    """One node for equal computations."""
    seen: dict[object, Node] = {}

    def rule(node: Node) -> Node:
        key = (node.op, node.inputs, tuple(sorted(node.attrs.items(), key=lambda item: item[0])))
        return seen.setdefault(key, node)

    return rewrite(graph, rule)


def fuse_norm(graph: Graph) -> Graph:
    """normalize(x) * w -> norm(x, w)."""

    def rule(node: Node) -> Node | None:
        if node.op != "mul" or node.inputs[0].op != "normalize":
            return None
        x, w = node.inputs
        return make("norm", x.inputs[0], w, **x.attrs) if w.type.shape == x.type.shape[-1:] else None

    return rewrite(graph, rule)


def fuse_gate(graph: Graph) -> Graph:
    """act(gate) * up -> gated(gate, up)."""

    def rule(node: Node) -> Node | None:
        if node.op != "mul" or node.inputs[0].op != "act":
            return None
        act, up = node.inputs
        return make("gated", act.inputs[0], up, **act.attrs) if act.type == up.type else None

    return rewrite(graph, rule)


# Operations that treat each row by itself, whatever the other rows hold.
ROW_WISE = frozenset(
    {
        "act",
        "add",
        "add_experts",
        "best_groups",
        "cat",
        "clamp",
        "div",
        "gated",
        "group_of",
        "linear",
        "linear_experts",
        "linear_heads",
        "mul",
        "norm",
        "normalize",
        "pick",
        "reshape",
        "scale",
        "share",
        "shift",
        "sinkhorn",
        "slice",
        "softcap",
        "softmax",
        "sum",
        "top",
        "weighted_sum",
    }
)


def select_early(graph: Graph) -> Graph:
    """Select rows before the row-wise operations that serve logits alone, so the other rows skip them."""
    narrow: set[Node] = set()
    for node in reversed(graph.nodes):
        served = all(user in narrow or user.op == "select" for user in graph.users.get(node, ()))
        if node.op in ROW_WISE and node.type.shape[0] == "T" and served:
            narrow.add(node)
    selected: dict[Node, Node] = {}
    new: dict[Node, Node] = {}

    def rows(node: Node) -> Node:
        """The node at "R" rows, for an operand of a narrow one."""
        if node in narrow or node.type.shape[0] != "T":
            return new[node]
        return selected.setdefault(node, make("select", new[node]))

    for node in graph.nodes:
        if node.op == "select":
            new[node] = rows(node.inputs[0])
        elif node in narrow:
            shape = ("R", *node.type.shape[1:])
            attrs = {"shape": shape} if node.op == "reshape" else node.attrs
            new[node] = Node(node.op, tuple(map(rows, node.inputs)), Type(node.type.dtype, shape), attrs)
        else:
            inputs = tuple(new[n] for n in node.inputs)
            new[node] = node if inputs == node.inputs else Node(node.op, inputs, node.type, node.attrs)
    return Graph(new[graph.output])


PRODUCTS = frozenset({"linear", "linear_experts", "linear_heads"})


def quantize_inputs(graph: Graph) -> Graph:
    """linear(x, w) -> linear(quantize(x), w) for quantised weights; x is quantised once for all that read it."""
    made: dict[Node, Node] = {}

    def rule(node: Node) -> Node | None:
        if node.op not in PRODUCTS or by_name(node.inputs[1].type.dtype).is_float:
            return None
        x, *rest = node.inputs
        if x not in made:
            made[x] = make("quantize", x)
        return make(node.op, made[x], *rest)

    return rewrite(graph, rule)


PASSES: Mapping[str, Callable[[Graph], Graph]] = {
    "share": share,
    "fuse_norm": fuse_norm,
    "fuse_gate": fuse_gate,
    "select_early": select_early,
    "quantize_inputs": quantize_inputs,
}


def rotate_keys(graph: Graph) -> Graph:
    """Turn queries and keys by one orthogonal matrix: the same scores, and keys that lose less when they are quantised.

    It spreads what a few channels hold over all of them (Ashkboos et al. 2024, arXiv:2404.00456).
    """

    def rule(node: Node) -> Node | None:
        if node.op == "kv_store":
            return make("kv_store", make("hadamard", node.inputs[0]), *node.inputs[1:], **node.attrs)
        if node.op == "attend":
            return make("attend", make("hadamard", node.inputs[0]), *node.inputs[1:], **node.attrs)
        return None

    return rewrite(graph, rule)


def lower(graph: Graph, ops: Collection[str]) -> Graph:
    """All passes in order; fused operations that are not among the backend's `ops` are taken apart again."""
    for run in PASSES.values():
        graph = run(graph)
    return expand(graph, ops)


def expand(graph: Graph, ops: Collection[str] = ()) -> Graph:
    """Put each fused operation that is not in `ops` back into plain ones."""

    def rule(node: Node) -> Node | None:
        definition = OPS[node.op].definition
        return definition(node) if definition and node.op not in ops else None

    return rewrite(graph, rule)
