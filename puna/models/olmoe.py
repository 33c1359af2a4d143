"""OLMoE: q and k are normed over all heads."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["OLMoE"]


class OLMoE(Decoder):
    """Pre-norm decoder."""

    names = ("olmoe",)
    normed = False

    def attention(self, x: Node, l: Layer) -> Node:
        return attention(x, l, self.rope(l), qk_norm=True)
