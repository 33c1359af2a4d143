"""Gemma 3: norms before and after each block, five sliding-window layers to each full one."""

from __future__ import annotations

import dataclasses
import math

from puna.models.config import ModelConfig
from puna.models.gemma2 import Gemma2, query_scale

__all__ = ["Gemma3"]

LAYERS_27B = 62


class Gemma3(Gemma2):
    """Embeddings are scaled by sqrt(width); windowed layers rotate with a base of their own."""

    names = ("gemma3",)
    qk_norm = True
    reads = (
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "final_logit_softcapping",
        "rope.freq_base_swa",
    )

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        return dataclasses.replace(
            c,
            windowed=c.windowed or tuple(i % 6 != 5 for i in range(c.n_layer)),
            rope_windowed=c.rope_windowed or 10000.0,
            scale=query_scale(c, LAYERS_27B),
            embedding_scale=math.sqrt(c.n_embd),
        )
