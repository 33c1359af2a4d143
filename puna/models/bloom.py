"""BLOOM: ALiBi, a norm on embeddings, biases everywhere."""

from __future__ import annotations

import dataclasses

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import BIASES

__all__ = ["Bloom"]


class Bloom(Decoder):
    """Pre-norm decoder without rotation."""

    names = ("bloom",)
    norm_kind = "layer"
    act = "gelu"
    gated = False
    rotates = False
    reads = ("attention.max_alibi_bias",)
    requires = BIASES

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, alibi=config.alibi or 8.0)

    def embed(self, x: Node) -> Node:
        return norm(x, self.weights.token_embd_norm)
