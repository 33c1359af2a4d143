"""Refact: Llama with ALiBi in place of rotation."""

from __future__ import annotations

import dataclasses

from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Refact"]


class Refact(Decoder):
    """Pre-norm decoder."""

    names = ("refact",)
    reads = ("attention.max_alibi_bias",)
    ignores = "cls", "rope_freqs", "attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, alibi=config.alibi or 8.0)

    def rope(self, l: Layer) -> None:
        return None
