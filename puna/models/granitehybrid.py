"""Granite 4 hybrids: Granite with Mamba 2 in most layers, and mixtures of experts where the file has them."""

from __future__ import annotations

from puna.graph import Node
from puna.models.granite import Granite
from puna.models.recurrent import SSM, mamba2
from puna.models.weights import Layer

__all__ = ["GraniteHybrid"]


class GraniteHybrid(Granite):
    """Pre-norm decoder; a layer's tensors tell what it is."""

    names = ("granitehybrid",)
    reads = (*Granite.reads, *SSM)
    requires = ("ssm_norm",)

    def attention(self, x: Node, l: Layer) -> Node:
        return mamba2(x, l) if l.ssm_in else super().attention(x, l)
