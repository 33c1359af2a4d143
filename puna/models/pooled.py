"""Attention to a window and to blocks of all positions, each pooled into one key (DeepSeek-AI 2026, DeepSeek-V4).

What is stored of a token is one vector, key and value at once, whose end is rotated; so the end of what attention gives
is turned back by the position of the query.
"""

from __future__ import annotations

import dataclasses

from puna.graph import Node, Rope, make
from puna.models import indexer
from puna.models.blocks import attend_to, heads, linear, norm, rotate_end
from puna.models.recurrent import flat
from puna.models.weights import Layer, Parameter

__all__ = ["KEYS", "block_size", "pooled_attention"]

# What an architecture with pooled attention reads.
KEYS = ("attention.compress_ratios", *indexer.KEYS)
MOST = 2**16  # positions of a block


def block_size(l: Layer) -> int:
    """Positions of a layer's blocks, 0 where it sees its window alone. Raises ModelError for one that cannot be."""
    c, key = l.config, "attention.compress_ratios"
    sizes = c.lists.get(key, ())
    if len(sizes) < c.n_layer or not all(n == 0 or 2 <= n <= MOST for n in sizes):
        raise c.error(key, f"needs {c.n_layer} numbers, one a layer: 0, or 2 to {MOST}")
    return sizes[l.index]


def pooled_attention(x: Node, queries: Node, q: Node, l: Layer, rope: Rope) -> Node:
    """What the queries q [T, n_head, size], which are rotated, find: [T, n_head * size].

    x [T, width]: a layer's normed input.  queries: what an indexer's queries are made of.
    """
    c, size, every = l.config, l.config.head_k, block_size(l)
    k = rotate_end(heads(norm(linear(x, l.attn_kv, size), l.attn_kv_a_norm), 1, size), rope)
    kv = make("kv_store", k, make("slice", k, start=0, size=size), layer=l.slot)
    if not every:
        y = heads(attend_to(q, kv, l), l.n_head, size)
    else:
        blocks = pool(x, l, "attn", size, every, rope, c.n_layer + l.slot)
        chosen = chosen_blocks(x, queries, l, every, rope)
        more = (l.attn_sinks.weight(l.n_head), *([chosen] if chosen else []))
        y = make("attend_both", q, kv, blocks, *more, scale=size**-0.5, window=l.window)
    return flat(rotate_end(y, dataclasses.replace(rope, back=True)))


def pool(x: Node, l: Layer, kind: str, size: int, every: int, rope: Rope, slot: int) -> Node:
    """The cache `slot` of a key for each block of x [T, width]. kind: of the tensors that make them.

    Where those have twice as many rows, a block also sees the one before it.
    """
    values, gate, offsets, normed = (
        Parameter(l.weights, f"blk.{l.index}.{kind}_compressor_{part}")
        for part in ("kv", "gate", "ape", "norm")
    )
    rows = 2 * size if values.rows == 2 * size else size
    y = make(
        "pool",
        linear(x, values, rows),
        linear(x, gate, rows),
        offsets.weight(every, rows),
        make("positions"),
        state=values.name,
        every=every,
        overlap=rows > size,
    )
    # It is made at a block's last position, and rotated by its first.
    k = rotate_end(heads(norm(y, normed), 1, size), dataclasses.replace(rope, shift=1 - every))
    return make("kv_store", k, make("slice", k, start=0, size=size), layer=slot, every=every)


def chosen_blocks(x: Node, queries: Node, l: Layer, every: int, rope: Rope) -> Node | None:
    """The blocks that each token attends to, [T, top_k], or None for a layer that attends to all there can be."""
    c, q_b, proj = (
        l.config,
        *(Parameter(l.weights, f"blk.{l.index}.indexer.{name}") for name in ("attn_q_b", "proj")),
    )
    if not q_b:
        return None
    n, size, top = (c.count(key, 0, most=indexer.MOST) for key in indexer.KEYS)
    if c.n_ctx // every <= top:
        indexer.leave_out(l)
        return None
    q = rotate_end(heads(linear(queries, q_b, n * size), n, size), rope)
    keys = pool(x, l, "indexer", size, every, rope, 2 * c.n_layer + l.slot)
    return make("index", q, linear(x, proj, n), keys, k=top)
