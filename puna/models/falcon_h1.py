"""Falcon H1: Mamba 2 and attention side by side in each layer."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention
from puna.models.decoder import Decoder
from puna.models.recurrent import SSM, mamba2
from puna.models.weights import Layer

__all__ = ["FalconH1"]


class FalconH1(Decoder):
    """Pre-norm decoder; what both make of the normed input is added. Its factors are in the weights."""

    names = ("falcon-h1",)
    reads = SSM
    ignores = (*Decoder.ignores, "attn_output.bias", "rope_freqs")

    def attention(self, x: Node, l: Layer) -> Node:
        return attention(x, l, self.rope(l)) + mamba2(x, l)
