"""OLMo: norms without weights, queries, keys and values limited to a range."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import normalize
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["OLMo"]


class OLMo(Decoder):
    """Llama's layer with layer norms that the file holds nothing of."""

    names = ("olmo",)
    norm_kind = "layer"
    rope_layout = "interleaved"
    reads = ("attention.clamp_kqv",)

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + self.attention(normalize(x, self.config), l)
        return x + self.feed_forward(normalize(x, self.config), l)

    def final_norm(self, x: Node) -> Node:
        return normalize(x, self.config)
