"""Hunyuan A13B: a shared expert, q and k normed after rotation."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["HunyuanMoE"]


class HunyuanMoE(Decoder):
    """Llama's layer with these norms and experts."""

    names = ("hunyuan-moe",)

    def attention(self, x: Node, l: Layer) -> Node:
        return attention(x, l, self.rope(l), qk_norm=True, norm_rotated=True)
