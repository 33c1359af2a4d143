"""Snowflake Arctic: a dense block, and beside attention and it a mixture of experts."""

from __future__ import annotations

import dataclasses

from puna.graph import Node
from puna.models.blocks import feed_forward, norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Arctic"]


class Arctic(Decoder):
    """Pre-norm decoder; its experts read a layer's input, before attention."""

    names = ("arctic",)
    rope_layout = "interleaved"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, n_ff=(config.n_embd,) * config.n_layer)

    def layer(self, x: Node, l: Layer) -> Node:
        y = x + self.attention(norm(x, l.attn_norm), l)
        y = y + feed_forward(norm(y, l.ffn_norm), l)
        return y + self.feed_forward(norm(x, l.ffn_norm_exps), l)
