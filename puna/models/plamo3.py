"""PLaMo 3: norms before and after each block, q and k normed a head, sliding windows."""

from __future__ import annotations

import dataclasses

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.keys import all_but_each
from puna.models.weights import Layer

__all__ = ["PLaMo3"]


class PLaMo3(Decoder):
    """Decoder with q, k and v from one matrix, gate and up from another."""

    names = ("plamo3",)
    qk_norm = True
    reads = "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        return dataclasses.replace(c, windowed=c.windowed or all_but_each(8, c.n_layer))

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + norm(self.attention(norm(x, l.attn_norm), l), l.post_attention_norm)
        return x + norm(self.feed_forward(norm(x, l.ffn_norm), l), l.post_ffw_norm)
