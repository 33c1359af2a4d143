"""OpenELM: widths and heads that grow from layer to layer, q and k normed a head."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["OpenELM"]


class OpenELM(Decoder):
    """Pre-norm decoder with q, k and v from one matrix and a tied output."""

    names = ("openelm",)

    def attention(self, x: Node, l: Layer) -> Node:
        return attention(x, l, self.rope(l), qk_norm=True)
