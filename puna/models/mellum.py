"""Mellum 2: Qwen 3's mixture of experts with sliding windows, whose rotation is not stretched."""

from __future__ import annotations

import dataclasses

from puna.models.config import ModelConfig
from puna.models.keys import all_but_each
from puna.models.qwen3 import Qwen3

__all__ = ["Mellum"]


class Mellum(Qwen3):
    """Qwen 3's layer; a windowed one is rotated by the same base."""

    names = ("mellum",)
    reads = "attention.sliding_window", "attention.sliding_window_pattern"
    requires = ("output",)

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        windowed = c.windowed or all_but_each(4, c.n_layer)
        return dataclasses.replace(c, windowed=windowed, rope_windowed=c.rope_base)
