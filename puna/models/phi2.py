"""Phi 1.5 and 2: attention and feed-forward side by side after one norm."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import mlp, norm
from puna.models.decoder import Decoder
from puna.models.weights import BIASES, Layer

__all__ = ["Phi2"]


class Phi2(Decoder):
    """Parallel decoder whose every matrix has a bias, the output too."""

    names = ("phi2",)
    norm_kind = "layer"
    requires = (*BIASES, "output.bias")

    def layer(self, x: Node, l: Layer) -> Node:
        y = norm(x, l.attn_norm)
        return x + self.attention(y, l) + mlp(y, l, "gelu")
