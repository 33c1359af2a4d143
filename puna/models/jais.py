"""Jais: ALiBi, layer norms, scores divided by the size of a head."""

from __future__ import annotations

import dataclasses

from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import BIASES

__all__ = ["Jais"]


class Jais(Decoder):
    """Pre-norm decoder without rotation, with biases everywhere."""

    names = ("jais",)
    norm_kind = "layer"
    rotates = False
    reads = ("attention.max_alibi_bias",)
    requires = (*BIASES, "output")

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, scale=1.0 / config.head_k)
