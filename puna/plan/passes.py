"""THE ordered list of passes from a model's graph to the one that is planned.

A pass is a function Graph -> Graph that keeps what the graph means. `PASSES` names them in order; tests run the
spec and the oracle before and after each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import cast

from puna.graph import OPS, Graph, Node, hadamard_size, make
from puna.graph.node import Type
from puna.plan.kv import is_shared
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
        "whole",
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
    """linear(x, w) -> linear(quantize(x), w) for quantised weights, and linear(round(x), w) for those of BF16.

    x is brought into each form once for all that read it.
    """
    made: dict[tuple[str, Node], Node] = {}

    def rule(node: Node) -> Node | None:
        how = narrowed(node)
        if not how:
            return None
        x, *rest = node.inputs
        if (how, x) not in made:
            made[how, x] = make(how, x)
        return make(node.op, made[how, x], *rest)

    return rewrite(graph, rule)


def narrowed(node: Node) -> str:
    """What is done to the activations of a matrix product; "" for nothing."""
    if node.op not in PRODUCTS:
        return ""
    kind, k = node.inputs[1].type.dtype, cast(int, node.inputs[1].type.shape[-1])
    if not by_name(kind).is_float:
        return "quantize"
    return "round" if kind == "BF16" and k % 2 == 0 else ""


PASSES: Mapping[str, Callable[[Graph], Graph]] = {
    "share": share,
    "fuse_norm": fuse_norm,
    "fuse_gate": fuse_gate,
    "select_early": select_early,
    "quantize_inputs": quantize_inputs,
}


# What scores keys of the cache with the first of its operands: to choose of them, or to mix their values.
CHOICES = frozenset({"index", "index_blocks"})
SEED = 7  # of eight, the one with the least divergence on Gemma 3 270M and SmolLM2 135M with keys of 4 and 5 bits
READERS = frozenset({"attend", "attend_both", "attend_chosen", *CHOICES})


def rotate_keys(graph: Graph) -> Graph:
    """Turn queries and keys by one orthogonal matrix: the same scores, and keys that lose less when they are quantised.

    Random signs and a Hadamard matrix spread what a few channels hold over all of them (Ashkboos et al. 2024,
    arXiv:2404.00456); the signs keep channels that go together from adding up in one place. Values that are the
    beginnings of keys stay so, where they are whole runs of the matrix: they are turned too, and what attention gives
    is turned back. Others, such as those of a latent vector no longer than its rotated part, are not.
    """

    def rule(node: Node) -> Node | None:
        if node.op == "kv_store":
            values, turned = node.inputs[1], turn(node.inputs[0])
            if is_shared(node) and cast(int, node.type.shape[2]) % run_of(node) == 0:
                values = make("slice", turned, **values.attrs)
            return make("kv_store", turned, values, **node.attrs)
        if node.op not in READERS:
            return None
        y = make(node.op, turn(node.inputs[0]), *node.inputs[1:], **node.attrs)
        store = next(n for n in node.inputs if n.op == "kv_store")
        return turned_back(y, run_of(store)) if is_shared(store) and node.op not in CHOICES else y

    return rewrite(graph, rule)


def turn(x: Node) -> Node:
    """Each run of x [T, heads, size] times signs, then times the matrix."""
    size = cast(int, x.type.shape[-1])
    return make("hadamard", x * signs(size, hadamard_size(size)))


def signs(size: int, run: int) -> Node:
    """A constant [size] of signs, of which each run has the same."""
    bits = Random(SEED).getrandbits(run)
    return make(
        "constant", values=tuple(1.0 - 2.0 * (bits >> i % run & 1) for i in range(size)), shape=(size,)
    )


def run_of(store: Node) -> int:
    """How many values of a key are turned together."""
    return hadamard_size(cast(int, store.type.shape[1]))


def turned_back(y: Node, run: int) -> Node:
    """Mixed values [T, heads, size] as they would be, had those that were mixed not been turned."""
    _, heads, size = cast("tuple[str, int, int]", y.type.shape)
    runs = make("hadamard", make("reshape", y, shape=("T", heads * size // run, run)))
    return make("reshape", runs * signs(run, run), shape=("T", heads, size))


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
