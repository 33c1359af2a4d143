"""Mamba, and Falcon Mamba: nothing but selective state spaces."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.decoder import Decoder
from puna.models.recurrent import SSM, mamba
from puna.models.weights import Layer

__all__ = ["Mamba"]


class Mamba(Decoder):
    """One block a layer."""

    names = ("mamba",)
    reads = SSM
    requires = "ssm_conv1d.bias", "ssm_dt.bias"

    def layer(self, x: Node, l: Layer) -> Node:
        return x + mamba(norm(x, l.attn_norm), l)
