"""Qwen 2 and 2.5: Llama's layer with biases on q, k and v, which `linear` finds in the file."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention, feed_forward, norm
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Qwen2"]


class Qwen2(Decoder):
    """Pre-norm decoder; q and k are normed a head where the file has the weights, as Qwen 3's do."""

    names = "qwen2", "qwen3"

    def layer(self, x: Node, l: Layer) -> Node:
        eps = self.config.norm_eps
        x = x + attention(norm(x, l.attn_norm, eps), l, self.config.rope(self.rope_layout))
        return x + feed_forward(norm(x, l.ffn_norm, eps), l)
