"""PLaMo: attention and feed-forward side by side after one norm."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["PLaMo"]


class PLaMo(Decoder):
    """Parallel decoder."""

    names = ("plamo",)
    requires = ("output",)

    def layer(self, x: Node, l: Layer) -> Node:
        y = norm(x, l.attn_norm)
        return x + self.attention(y, l) + self.feed_forward(y, l)
