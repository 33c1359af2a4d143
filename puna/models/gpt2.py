"""GPT-2, and StarCoder, whose heads share one key and value: learned positions, biases everywhere."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import learned_positions
from puna.models.decoder import Decoder
from puna.models.weights import BIASES

__all__ = ["GPT2"]


class GPT2(Decoder):
    """Pre-norm decoder without rotation."""

    names = "gpt2", "starcoder"
    norm_kind = "layer"
    act = "gelu"
    gated = False
    rotates = False
    requires = BIASES

    def embed(self, x: Node) -> Node:
        return x + learned_positions(self.weights)
