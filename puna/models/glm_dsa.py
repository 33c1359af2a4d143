"""GLM 5: DeepSeek 3.2 with sigmoid routing; from 5.2 on some layers attend to what the one before them has chosen."""

from __future__ import annotations

import dataclasses

from puna.models.config import ModelConfig
from puna.models.deepseek32 import DeepSeek32

__all__ = ["GLMDSA"]

LONG = 1 << 20  # positions that 5.2, whose files may not tell which layers choose, was trained on


class GLMDSA(DeepSeek32):
    """Pre-norm decoder whose first layers are dense."""

    names = ("glm-dsa",)
    gating = "sigmoid"
    index_layout = "interleaved"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = super().configure(config)
        if c.indexed or c.n_ctx_train < LONG:
            return c
        return dataclasses.replace(c, indexed=tuple(i < 2 or i % 4 == 2 for i in range(c.n_layer)))
