"""Mamba 2: nothing but state spaces with heads."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.decoder import Decoder
from puna.models.recurrent import SSM, mamba2
from puna.models.weights import Layer

__all__ = ["Mamba2"]


class Mamba2(Decoder):
    """One block a layer."""

    names = ("mamba2",)
    reads = SSM
    requires = "ssm_norm", "ssm_conv1d.bias"

    def layer(self, x: Node, l: Layer) -> Node:
        return x + mamba2(norm(x, l.attn_norm), l)
