"""MiniMax M2: sigmoid routing, q and k normed over all heads."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["MiniMaxM2"]


class MiniMaxM2(Decoder):
    """Pre-norm decoder that rotates a part of each head."""

    names = ("minimax-m2",)
    gating = "sigmoid"

    def attention(self, x: Node, l: Layer) -> Node:
        return attention(x, l, self.rope(l), qk_norm=True)
