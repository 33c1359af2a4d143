"""Gemma: embeddings scaled by sqrt(width), a feed-forward block gated by gelu, tied output."""

from __future__ import annotations

import dataclasses
import math

from puna.models.config import ModelConfig
from puna.models.decoder import Decoder

__all__ = ["Gemma"]


class Gemma(Decoder):
    """Llama's layer with another activation."""

    names = ("gemma",)
    act = "gelu"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, embedding_scale=math.sqrt(config.n_embd))
