"""Refact: Llama with ALiBi in place of rotation."""

from __future__ import annotations

import dataclasses

from puna.models.config import ModelConfig
from puna.models.decoder import Decoder

__all__ = ["Refact"]


class Refact(Decoder):
    """Llama's layer; biases that its files may hold have no effect."""

    names = ("refact",)
    rotates = False
    reads = ("attention.max_alibi_bias",)
    ignores = "cls", "rope_freqs", "attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, alibi=config.alibi or 8.0)
