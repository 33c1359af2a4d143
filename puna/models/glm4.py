"""GLM-4 0414, and the text half of GLM-4V: norms before and after each block, gate and up from one matrix."""

from __future__ import annotations

from puna.graph import Node, Rope
from puna.models.blocks import norm
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["GLM4"]


class GLM4(Decoder):
    """Decoder that rotates half of each head; files of the vision model store q and k in halves."""

    names = ("glm4",)

    def rope(self, l: Layer) -> Rope:
        return self.config.rope("halves" if self.config.rope_sections else "interleaved")

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + norm(self.attention(norm(x, l.attn_norm), l), l.post_attention_norm)
        return x + norm(self.feed_forward(norm(x, l.ffn_norm), l), l.post_ffw_norm)
