"""SmallThinker: routers that read a layer's input, relu gates, no rotation in each fourth layer."""

from __future__ import annotations

import dataclasses

from puna.graph import Node, Rope
from puna.models.blocks import linear, norm
from puna.models.config import ModelConfig, first_full
from puna.models.decoder import Decoder
from puna.models.experts import experts, mixture
from puna.models.weights import Layer

WINDOW = 4096

__all__ = ["SmallThinker"]


class SmallThinker(Decoder):
    """Pre-norm decoder. Its larger model has a window in the layers that rotate."""

    names = ("smallthinker",)
    reads = "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        if not c.window:
            return dataclasses.replace(c, windowed=())
        return dataclasses.replace(c, window=WINDOW, windowed=first_full(c, 4), stretch_windowed=True)

    def rope(self, l: Layer) -> Rope | None:
        return super().rope(l) if l.windowed or not self.config.window else None

    def layer(self, x: Node, l: Layer) -> Node:
        scores = linear(x, l.ffn_gate_inp, mixture(l).count)
        x = x + self.attention(norm(x, l.attn_norm), l)
        return x + experts(norm(x, l.ffn_norm), l, "relu", scores=scores)
