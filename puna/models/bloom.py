"""BLOOM: ALiBi, a norm on embeddings, biases everywhere."""

from __future__ import annotations

import dataclasses

from puna.graph import Node
from puna.models.blocks import mlp, norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Bloom"]


class Bloom(Decoder):
    """Pre-norm decoder without rotation."""

    names = ("bloom",)
    norm_kind = "layer"
    reads = ("attention.max_alibi_bias",)

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, alibi=config.alibi or 8.0)

    def rope(self, l: Layer) -> None:
        return None

    def embed(self, x: Node) -> Node:
        return norm(x, self.weights.token_embd_norm)

    def feed_forward(self, x: Node, l: Layer) -> Node:
        return mlp(x, l, "gelu")
