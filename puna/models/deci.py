"""DeciLM and pruned Llama Nemotrons: layers may lack attention, its heads, or the feed-forward block."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import linear, norm
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Deci"]


class Deci(Decoder):
    """Llama, each layer of its own shape; without key/value heads attention is one matrix."""

    names = ("deci",)
    rope_layout = "interleaved"

    def layer(self, x: Node, l: Layer) -> Node:
        if l.n_head:
            x = x + self.attention(norm(x, l.attn_norm), l)
        return x + self.feed_forward(norm(x, l.ffn_norm), l) if l.n_ff else x

    def attention(self, x: Node, l: Layer) -> Node:
        return super().attention(x, l) if l.n_head_kv else linear(x, l.attn_output, self.config.n_embd)
