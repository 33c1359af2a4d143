"""MiniMax M3: sigmoid routing with a shared expert, gpt-oss's activation, q and k normed a head, chosen blocks."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models.blocks import attention, head_norm, heads, linear, project, rotate, split
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.experts import experts, oai
from puna.models.weights import Layer, Parameter

__all__ = ["MiniMaxM3"]

INDEXER = "q_proj", "k_proj", "q_norm", "k_norm"
KEYS = "head_count", "key_length", "block_size", "top_k", "local_blocks"
MOST = 2**31 - 1


class MiniMaxM3(Decoder):
    """Pre-norm decoder. Layers with experts see the best blocks of positions, those of each key/value head its own."""

    names = ("minimax-m3",)
    gating = "sigmoid"
    normed = False
    reads = tuple(f"attention.indexer.{key}" for key in KEYS)
    requires = "output", "exp_probs_b.bias"

    def attention(self, x: Node, l: Layer) -> Node:
        names = [Parameter(l.weights, f"blk.{l.index}.indexer.{name}") for name in INDEXER]
        size, top = sizes(l.config)
        if names[0] and size * top < l.config.n_ctx:
            return self.attention_to_blocks(x, l, *names)
        for name in names:  # which blocks are best is no question where all are seen
            name.ignore()
        return attention(x, l, self.rope(l), qk_norm=True)

    def attention_to_blocks(
        self, x: Node, l: Layer, q_proj: Parameter, k_proj: Parameter, q_norm: Parameter, k_norm: Parameter
    ) -> Node:
        """Each key/value head has a head of the indexer, a cache, and blocks of its own."""
        c, n, rope = l.config, l.n_head_kv, self.rope(l)
        size, top = sizes(c)
        wide = c.count("attention.indexer.key_length", most=MOST)
        if c.count("attention.indexer.head_count", most=MOST) != n:
            raise c.error("attention.indexer.head_count", f"it has to be that of key/value heads, {n}")
        local = c.count("attention.indexer.local_blocks", 0, least=0, most=top)
        q, k, v = project(x, l, qk_norm=True)
        q, k = rotate(q, rope), rotate(k, rope)
        asked = rotate(head_norm(heads(linear(x, q_proj, n * wide), n, wide), q_norm), rope)
        keys = rotate(head_norm(heads(linear(x, k_proj, wide), 1, wide), k_norm), rope)
        # Layers have as many caches as there are layers; those of indexers, and of single heads, come after them.
        small = make(
            "kv_store", keys, make("slice", keys, start=0, size=wide), layer=c.n_layer * (1 + n) + l.slot
        )
        found = []
        for g, (q_g, k_g, v_g, ask) in enumerate(
            zip(*(groups(each, n) for each in (q, k, v, asked)), strict=True)
        ):
            kv = make("kv_store", k_g, v_g, layer=c.n_layer * (1 + g) + l.slot)
            best = make("index_blocks", ask, small, k=top, size=size, local=local)
            how = {"scale": c.scale or l.head_k**-0.5, "window": 0, "softcap": c.softcap, "alibi": c.alibi}
            y = make("attend_chosen", q_g, kv, best, **how)
            found.append(make("reshape", y, shape=("T", 1, l.n_head // n * l.head_v)))
        y = found[0]
        for other in found[1:]:
            y = make("cat", y, other)
        return linear(make("reshape", y, shape=("T", l.n_head * l.head_v)), l.attn_output, c.n_embd)

    def feed_forward(self, x: Node, l: Layer) -> Node:
        if l.ffn_gate_inp:
            return experts(x, l, oai, gating=self.gating, normed=self.normed)
        y = oai(linear(x, l.ffn_gate, l.n_ff), linear(x, l.ffn_up, l.n_ff))
        return linear(y, l.ffn_down, self.config.n_embd)


def sizes(c: ModelConfig) -> tuple[int, int]:
    """Positions of a block, and how many blocks are chosen."""
    size, top = (c.count(f"attention.indexer.{key}", 2**16, most=MOST) for key in ("block_size", "top_k"))
    return size, top


def groups(x: Node, count: int) -> list[Node]:
    """x [T, heads, size] in runs of heads: `count` of [T, heads / count, size]."""
    _, n, size = x.type.shape
    assert isinstance(n, int)
    assert isinstance(size, int)
    flat, each = make("reshape", x, shape=("T", n * size)), n // count
    return [heads(part, each, size) for part in split(flat, (each * size,) * count)]
