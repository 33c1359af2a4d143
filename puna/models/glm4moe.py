"""GLM 4.5, 4.6 and 4.7, and the text half of GLM 4.5V: sigmoid routing with a bias for the choice, a shared expert."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention, norm
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["GLM4MoE"]


class GLM4MoE(Decoder):
    """Pre-norm decoder that rotates half of each head; the largest norms q and k a head. Its first layers are dense."""

    names = ("glm4moe",)
    gating = "sigmoid"
    normed = False
    requires = ("exp_probs_b.bias",)

    def layer(self, x: Node, l: Layer) -> Node:
        y = attention(norm(x, l.attn_norm), l, self.rope(l), qk_norm=bool(l.attn_q_norm))
        x = x + y
        return x + self.feed_forward(norm(x, l.post_attention_norm), l)
