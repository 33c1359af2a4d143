"""CodeShell: layer norms, biases everywhere, a feed-forward block without a gate."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import mlp
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["CodeShell"]


class CodeShell(Decoder):
    """Pre-norm decoder."""

    names = ("codeshell",)
    norm_kind = "layer"

    def feed_forward(self, x: Node, l: Layer) -> Node:
        return mlp(x, l, "gelu")
