"""Baichuan 1 and 2: Llama; the 13B has ALiBi in place of rotation."""

from __future__ import annotations

import dataclasses

from puna.graph import Rope
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Baichuan"]

LAYERS_7B, LAYERS_13B = 32, 40


class Baichuan(Decoder):
    """Pre-norm decoder. Its files do not say which of the two they are: the number of layers does."""

    names = ("baichuan",)
    rope_layout = "interleaved"
    requires = ("output",)

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, alibi=8.0) if config.n_layer == LAYERS_13B else config

    def rope(self, l: Layer) -> Rope | None:
        return super().rope(l) if self.config.n_layer == LAYERS_7B else None
