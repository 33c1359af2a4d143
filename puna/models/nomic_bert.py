"""Nomic's BERT: rotation and SwiGLU."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import feed_forward
from puna.models.encoder import Encoder
from puna.models.weights import Layer

__all__ = ["NomicBert"]


class NomicBert(Encoder):
    """Post-norm encoder with rotation and a gated feed-forward block."""

    names = ("nomic-bert",)
    act = "silu"

    def feed_forward(self, x: Node, l: Layer) -> Node:
        return feed_forward(x, l, self.act)
