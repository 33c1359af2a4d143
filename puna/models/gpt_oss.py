"""gpt-oss: windows in every other layer, attention sinks, experts with biases and an activation of their own."""

from __future__ import annotations

import dataclasses

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.experts import experts, oai
from puna.models.keys import all_but_each
from puna.models.weights import Layer

__all__ = ["GptOss"]


class GptOss(Decoder):
    """Pre-norm decoder; its experts' weights are a softmax over the chosen."""

    names = ("gpt-oss",)
    reads = "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"
    requires = "output", "attn_output.bias", "attn_sinks", "ffn_*.bias"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        windowed = c.windowed or all_but_each(2, c.n_layer)
        return dataclasses.replace(c, windowed=windowed, stretch_windowed=True)

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + self.attention(norm(x, l.attn_norm), l)
        return x + experts(norm(x, l.post_attention_norm), l, oai, gating="late", normed=False)
