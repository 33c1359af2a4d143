"""EXAONE 4: norms after each block, on q and k a head; the 32B has windows, and rotates in windowed layers alone."""

from __future__ import annotations

import dataclasses

from puna.graph import Rope
from puna.models.config import ModelConfig
from puna.models.keys import all_but_each
from puna.models.olmo2 import OLMo2
from puna.models.weights import Layer

__all__ = ["Exaone4"]

LAYERS_32B = 64


class Exaone4(OLMo2):
    """OLMo 2's layer."""

    names = ("exaone4",)
    reads = "attention.sliding_window", "attention.sliding_window_pattern"
    requires = ()

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        if c.n_layer != LAYERS_32B and not c.windowed:
            return dataclasses.replace(c, window=0)
        return dataclasses.replace(
            c, window=c.window or 4096, windowed=c.windowed or all_but_each(4, c.n_layer)
        )

    def rope(self, l: Layer) -> Rope | None:
        return super().rope(l) if l.windowed or not self.config.window else None
