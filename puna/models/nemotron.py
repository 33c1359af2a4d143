"""Nemotron 3 and 4, Minitron: layer norms, squared relu, rotation of a part of each head."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import mlp
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Nemotron"]


class Nemotron(Decoder):
    """Pre-norm decoder whose feed-forward block has no gate."""

    names = ("nemotron",)
    norm_kind = "layer"

    def feed_forward(self, x: Node, l: Layer) -> Node:
        return mlp(x, l, "relu2")
