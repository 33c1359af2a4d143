"""MPT: ALiBi or learned positions, q, k and v limited to a range, or normed over all heads."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models.blocks import attention, learned_positions, linear
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["MPT"]


class MPT(Decoder):
    """Pre-norm decoder without rotation. AWQ's files divide what the activation gives by scales."""

    names = ("mpt",)
    norm_kind = "layer"
    rotates = False
    reads = "attention.clamp_kqv", "attention.max_alibi_bias"

    def embed(self, x: Node) -> Node:
        return x + learned_positions(self.weights) if self.weights.position_embd else x

    def attention(self, x: Node, l: Layer) -> Node:
        if not l.attn_q_norm:
            l.attn_k_norm.ignore()
        return attention(x, l, None, qk_norm=bool(l.attn_q_norm))

    def feed_forward(self, x: Node, l: Layer) -> Node:
        y = make("act", linear(x, l.ffn_up, l.n_ff), kind="gelu")
        scales = f"blk.{l.index}.ffn.act.scales"
        if scales in self.weights.tensors:
            y = make("div", y, self.weights.node(scales, (l.n_ff,)))
        return linear(y, l.ffn_down, self.config.n_embd)
