"""Jais 2: layer norms, squared relu, biases everywhere."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import mlp
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Jais2"]


class Jais2(Decoder):
    """Pre-norm decoder whose feed-forward block has no gate."""

    names = ("jais2",)
    norm_kind = "layer"

    def feed_forward(self, x: Node, l: Layer) -> Node:
        return mlp(x, l, "relu2")
