"""MiniCPM 1, 2 and 4: Granite with factors of its own where the file has none."""

from __future__ import annotations

import dataclasses
import math

from puna.models.config import ModelConfig
from puna.models.granite import Granite

__all__ = ["MiniCPM"]

DIM_MODEL_BASE = 256


class MiniCPM(Granite):
    """Granite, always with rotary positions."""

    names = ("minicpm",)
    reads = "embedding_scale", "logit_scale", "residual_scale"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        return super().configure(
            dataclasses.replace(
                c,
                embedding_scale=c.embedding_scale or 12.0,
                residual_scale=c.residual_scale or 1.4 / math.sqrt(c.n_layer),
                logit_scale=c.logit_scale or c.n_embd / DIM_MODEL_BASE,
            )
        )
