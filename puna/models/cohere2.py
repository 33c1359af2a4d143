"""Command R7B: Command R with sliding windows, and rotary positions in windowed layers alone."""

from __future__ import annotations

import dataclasses

from puna.graph import Rope
from puna.models.command_r import CommandR
from puna.models.config import ModelConfig
from puna.models.keys import all_but_each
from puna.models.weights import Layer

__all__ = ["Cohere2"]


class Cohere2(CommandR):
    """Three windowed layers to each full one."""

    names = ("cohere2",)
    reads = "attention.sliding_window", "attention.sliding_window_pattern", "logit_scale"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, windowed=config.windowed or all_but_each(4, config.n_layer))

    def rope(self, l: Layer) -> Rope | None:
        return super().rope(l) if l.windowed else None
