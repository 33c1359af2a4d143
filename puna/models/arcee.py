"""Arcee AFM: Llama with a feed-forward block of squared relu, without a gate."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import mlp
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Arcee"]


class Arcee(Decoder):
    """Pre-norm decoder."""

    names = ("arcee",)
    rope_layout = "interleaved"

    def feed_forward(self, x: Node, l: Layer) -> Node:
        return mlp(x, l, "relu2")
