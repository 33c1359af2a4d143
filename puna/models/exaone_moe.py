"""K-EXAONE: EXAONE 4's windows, rotation in windowed layers alone, sigmoid routing with a shared expert."""

from __future__ import annotations

import dataclasses

from puna.graph import Rope
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.keys import all_but_each
from puna.models.weights import Layer

__all__ = ["ExaoneMoE"]


class ExaoneMoE(Decoder):
    """Pre-norm decoder, q and k normed a head, whose first layers are dense."""

    names = ("exaone-moe",)
    gating = "sigmoid"
    normed = False
    qk_norm = True
    reads = "attention.sliding_window", "attention.sliding_window_pattern"
    requires = ("output",)

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        return dataclasses.replace(
            c, window=c.window or 128, windowed=c.windowed or all_but_each(4, c.n_layer)
        )

    def rope(self, l: Layer) -> Rope | None:
        return super().rope(l) if l.windowed else None
