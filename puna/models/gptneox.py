"""GPT-NeoX, Pythia: attention and feed-forward side by side, each after a norm of its own."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.decoder import Decoder
from puna.models.weights import BIASES, Layer

__all__ = ["GPTNeoX"]


class GPTNeoX(Decoder):
    """Decoder that rotates a part of each head; a file may say that its blocks follow one another."""

    names = ("gptneox",)
    norm_kind = "layer"
    act = "gelu"
    gated = False
    reads = ("use_parallel_residual",)
    requires = (*BIASES, "output")

    def layer(self, x: Node, l: Layer) -> Node:
        if not self.config.own.get("use_parallel_residual", True):
            return super().layer(x, l)
        y = self.feed_forward(norm(x, l.ffn_norm), l)
        return x + y + self.attention(norm(x, l.attn_norm), l)
