"""Hunyuan, dense, and the text half of its vision model: q and k are normed after rotation."""

from __future__ import annotations

import dataclasses

from puna.graph import Node
from puna.models.blocks import attention
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["HunyuanDense"]


class HunyuanDense(Decoder):
    """Pre-norm decoder. A factor alpha, where the file has one, raises the base of the rotation (NTK scaling)."""

    names = "hunyuan-dense", "hunyuan_vl"
    reads = ("rope.scaling.alpha",)

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        alpha = c.own.get("rope.scaling.alpha", 0.0)
        if alpha <= 0.0 or c.head_k <= 2:
            return c
        return dataclasses.replace(c, rope_base=c.rope_base * alpha ** (c.head_k / (c.head_k - 2)))

    def attention(self, x: Node, l: Layer) -> Node:
        return attention(x, l, self.rope(l), qk_norm=True, norm_rotated=True)
