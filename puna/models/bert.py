"""BERT, RoBERTa and the embedding models of their kind: learned positions."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import learned_positions
from puna.models.encoder import Encoder

__all__ = ["Bert"]


class Bert(Encoder):
    """Post-norm encoder without rotation."""

    names = ("bert",)
    rotates = False

    def embed(self, x: Node) -> Node:
        return super().embed(x + learned_positions(self.weights))
