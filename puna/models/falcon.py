"""Falcon: attention and feed-forward side by side; the 40B gives attention a norm of its own."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import mlp, norm
from puna.models.decoder import Decoder
from puna.models.weights import NORMS, Layer

__all__ = ["Falcon"]


class Falcon(Decoder):
    """Parallel decoder whose matrices have no biases."""

    names = ("falcon",)
    norm_kind = "layer"
    requires = NORMS

    def layer(self, x: Node, l: Layer) -> Node:
        y = norm(x, l.attn_norm)
        attended = norm(x, l.attn_norm_2) if l.attn_norm_2 else y
        return x + self.attention(attended, l) + mlp(y, l, "gelu")
