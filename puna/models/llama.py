"""Llama, and the models that share its layer: Mistral, SmolLM2, Mixtral's mixture of experts."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention, experts, feed_forward, norm
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Llama"]


class Llama(Decoder):
    """Pre-norm decoder with grouped-query attention; rope_freqs hold Llama 3's frequency factors."""

    names = "llama", "mistral3"
    rope_layout = "interleaved"

    def layer(self, x: Node, l: Layer) -> Node:
        c, w = self.config, self.weights
        factors = w.rope_freqs.weight(c.rope_dims // 2) if w.rope_freqs else None
        rope = c.rope(self.rope_layout)
        x = x + attention(norm(x, l.attn_norm, c.norm_eps), l, rope, factors=factors)
        feed = experts if c.n_expert else feed_forward
        return x + feed(norm(x, l.ffn_norm, c.norm_eps), l)
