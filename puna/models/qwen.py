"""Qwen 1: q, k and v from one matrix with a bias."""

from __future__ import annotations

import dataclasses

from puna.models.config import ModelConfig
from puna.models.decoder import Decoder

__all__ = ["Qwen"]


class Qwen(Decoder):
    """Pre-norm decoder; its files give the feed-forward width of gate and up together."""

    names = ("qwen",)
    requires = "output", "attn_qkv.bias"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, n_ff=tuple(n // 2 for n in config.n_ff))
