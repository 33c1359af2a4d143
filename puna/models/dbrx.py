"""DBRX: layer norms without biases; queries, keys and values limited to a range."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["DBRX"]


class DBRX(Decoder):
    """Pre-norm decoder with q, k and v from one matrix."""

    names = ("dbrx",)
    norm_kind = "layer"
    reads = ("attention.clamp_kqv",)
    requires = ("output",)

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + self.attention(norm(x, l.attn_norm), l)
        return x + self.feed_forward(norm(x, l.attn_output_norm), l)
