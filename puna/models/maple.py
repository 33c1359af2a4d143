"""Maple: sliding windows, rotation in windowed layers alone, experts whose inner values are limited."""

from __future__ import annotations

import dataclasses

from puna.graph import Rope
from puna.models.config import ModelConfig
from puna.models.qwen3 import Qwen3
from puna.models.weights import Layer

LIMIT = 7.0  # of files that do not tell

__all__ = ["Maple"]


class Maple(Qwen3):
    """Pre-norm decoder, q and k normed a head; its files tell which layers are windowed."""

    names = ("maple",)
    reads = (
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "rope.dimension_count_swa",
        "rope.freq_base_swa",
    )
    requires = ("output",)

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        moe = config.moe
        if moe and not any(moe.limit):
            moe = dataclasses.replace(moe, limit=(LIMIT,) * config.n_layer)
        return dataclasses.replace(config, moe=moe, stretch_windowed=True)

    def rope(self, l: Layer) -> Rope | None:
        return super().rope(l) if l.windowed else None
