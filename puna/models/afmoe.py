"""Trinity (Arcee AFM, mixture of experts): norms before and after each block, gates on attention, windows."""

from __future__ import annotations

import dataclasses
import math

from puna.graph import Node, Rope, make
from puna.models.blocks import attention, linear, norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.keys import all_but_each
from puna.models.weights import Layer

__all__ = ["AFMoE"]


class AFMoE(Decoder):
    """Decoder with scaled embeddings, that rotates in windowed layers alone. Its first layers are dense."""

    names = ("afmoe",)
    gating = "sigmoid"
    normed = False
    reads = "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"
    requires = ("exp_probs_b.bias",)

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        windowed = c.windowed or all_but_each(4, c.n_layer)
        embedding_scale = math.sqrt(c.n_embd)
        return dataclasses.replace(
            c, windowed=windowed, embedding_scale=embedding_scale, stretch_windowed=True
        )

    def rope(self, l: Layer) -> Rope | None:
        return super().rope(l) if (l.index + 1) % 4 else None

    def attention(self, x: Node, l: Layer) -> Node:
        gate = make("act", linear(x, l.attn_gate, l.n_head * self.config.head_v), kind="sigmoid")
        return attention(x, l, self.rope(l), qk_norm=True, gate=gate)

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + norm(self.attention(norm(x, l.attn_norm), l), l.post_attention_norm)
        return x + norm(self.feed_forward(norm(x, l.ffn_norm), l), l.post_ffw_norm)
