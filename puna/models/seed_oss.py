"""Seed OSS: Llama under other names."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["SeedOSS"]


class SeedOSS(Decoder):
    """Pre-norm decoder; the norm before the feed-forward block is called post_attention_norm."""

    names = ("seed_oss",)

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + self.attention(norm(x, l.attn_norm), l)
        return x + self.feed_forward(norm(x, l.post_attention_norm), l)
