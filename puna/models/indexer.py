"""The choice of the positions that a layer attends to (DeepSeek-AI 2025, DeepSeek-V3.2): few, light heads score all.

A key of the indexer is one small vector a token, which the cache holds too.
"""

from __future__ import annotations

from puna.errors import ModelError
from puna.graph import Node, make
from puna.graph.rope import Layout
from puna.models.blocks import heads, linear, rotate, rotate_end
from puna.models.weights import Layer, Parameter

__all__ = ["KEYS", "MOST", "all_chosen", "indexed", "leave_out"]

# What an architecture with an indexer reads.
KEYS = ("attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k")
MOST = 2**31 - 1


def indexed(
    x: Node, queries: Node, l: Layer, layout: Layout, *, eps: float = 1e-6, turned_last: bool = False
) -> Node | None:
    """The positions that each token attends to, [T, top_k], or None where it may attend to all there can be.

    x [T, width]: a layer's normed input.  queries: what its queries are made of.
    layout: of the rotated pairs.  turned_last: the rotated part of a key is its end, not its beginning.
    eps: of the layer norm on keys.
    """
    c = l.config
    n, size = c.count("attention.indexer.head_count"), c.count("attention.indexer.key_length", most=MOST)
    top = c.count("attention.indexer.top_k", most=MOST)
    q_b, k, k_norm, proj = (part(l, name) for name in ("attn_q_b", "attn_k", "k_norm", "proj"))
    if c.n_ctx <= top:
        for p in (q_b, k, k_norm, proj):
            p.ignore()
        return None
    keys = make("normalize", linear(x, k, size), kind="layer", eps=eps) * k_norm.weight(size)
    bias = k_norm.bias(size)
    keys = keys + bias if bias else keys
    keys = turn(heads(keys, 1, size), l, layout, turned_last)
    q = turn(heads(linear(queries, q_b, n * size), n, size), l, layout, turned_last)
    # Layers have as many caches as there are layers, those of indexers come after them.
    kv = make("kv_store", keys, make("slice", keys, start=0, size=size), layer=c.n_layer + l.slot)
    return make("index", q, linear(x, proj, n), kv, k=top)


def all_chosen(l: Layer) -> None:
    """For a layer whose indexer is left out, as it would choose all positions.

    Raises ModelError for a context that is longer than what it may choose.
    """
    c, top = l.config, l.config.count("attention.indexer.top_k", most=MOST)
    if c.n_ctx > top:
        raise ModelError(
            f"attention to {top} chosen positions of a context of {c.n_ctx} is not supported for this architecture",
            where=l.weights.path,
            fix=f"use a context (-c) of at most {top}",
        )
    leave_out(l)


def leave_out(l: Layer) -> None:
    """For a layer that attends to all there can be without its indexer."""
    l.weights.known |= {name for name in l.weights.tensors if name.startswith(f"blk.{l.index}.indexer")}


def part(l: Layer, name: str) -> Parameter:
    return Parameter(l.weights, f"blk.{l.index}.indexer.{name}")


def turn(x: Node, l: Layer, layout: Layout, is_last: bool) -> Node:
    """Rotate a part of each head of x [T, heads, size]."""
    return (rotate_end if is_last else rotate)(x, l.config.rope(layout))
