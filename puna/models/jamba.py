"""Jamba: Mamba in most layers, attention without positions in the others, some with a mixture of experts."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention
from puna.models.decoder import Decoder
from puna.models.recurrent import SSM, mamba
from puna.models.weights import Layer

__all__ = ["Jamba"]


class Jamba(Decoder):
    """Pre-norm decoder; a layer's tensors tell what it is."""

    names = ("jamba",)
    normed = False
    reads = SSM
    requires = "ssm_conv1d.bias", "ssm_dt.bias"

    def attention(self, x: Node, l: Layer) -> Node:
        return mamba(x, l) if l.ssm_in else attention(x, l, rope=None)
