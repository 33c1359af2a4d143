"""Llama 4: attention in chunks, no rotation in each fourth layer, weights that scale what goes into experts."""

from __future__ import annotations

import dataclasses

from puna.graph import Node, Rope, make
from puna.models.blocks import attend, linear, normalize, project, rope_factors, rotate
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.experts import experts
from puna.models.keys import all_but_each
from puna.models.weights import Layer

CHUNK = 8192
TEMPER = 0.1  # of the queries of layers without rotation
UNNORMED = 128  # experts of the one model that does not norm q and k

__all__ = ["Llama4"]


class Llama4(Decoder):
    """Pre-norm decoder. Its relatives without experts see all, and rotate in all layers but the last."""

    names = ("llama4",)
    rope_layout = "interleaved"
    reads = (
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.temperature_scale",
        "rope.freq_base_swa",
    )

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        if not c.moe:
            return dataclasses.replace(c, window=0)
        windowed = c.windowed or all_but_each(4, c.n_layer)
        return dataclasses.replace(c, window=CHUNK, windowed=windowed, chunked=True, stretch_windowed=True)

    def rope(self, l: Layer) -> Rope | None:
        every = 4 if self.config.chunked else self.config.n_layer
        return super().rope(l) if (l.index + 1) % every else None

    def attention(self, x: Node, l: Layer) -> Node:
        c, rope = self.config, self.rope(l)
        q, k, v = project(x, l)
        if rope:
            factors = rope_factors(l)
            q, k = rotate(q, rope, factors), rotate(k, rope, factors)
            if c.moe and c.moe.count != UNNORMED:
                q, k = normalize(q, c), normalize(k, c)
        elif c.chunked:
            q = make("temper", q, length=CHUNK, by=TEMPER, offset=1)
        return linear(attend(q, k, v, l), l.attn_output, c.n_embd)

    def feed_forward(self, x: Node, l: Layer) -> Node:
        if l.ffn_gate_inp:
            return experts(x, l, gating="sigmoid", normed=False, early=True)
        return super().feed_forward(x, l)
