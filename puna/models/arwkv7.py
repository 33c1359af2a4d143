"""ARWKV: Qwen 2 with RWKV 7's mixing over time in the place of attention."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.rwkv7 import RWKV7
from puna.models.weights import Layer

__all__ = ["ARWKV7"]


class ARWKV7(RWKV7):
    """Qwen 2's norms and feed-forward blocks around RWKV 7's mixing over time."""

    names = ("arwkv7",)
    norm_kind = "rms"

    def embed(self, x: Node) -> Node:
        return x

    def channels(self, x: Node, l: Layer) -> Node:
        return x + self.feed_forward(norm(x, l.ffn_norm), l)
