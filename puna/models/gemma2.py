"""Gemma 2: norms before and after each block, soft caps, a sliding window in every other layer."""

from __future__ import annotations

import dataclasses
import math

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.keys import all_but_each
from puna.models.weights import Layer

__all__ = ["Gemma2"]

LAYERS_27B = 46


class Gemma2(Decoder):
    """Gemma with soft caps on scores and logits."""

    names = ("gemma2",)
    act = "gelu"
    reads = (
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "rope.freq_base_swa",
    )

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        # The 27B alone was trained with a query scale of its width over its heads.
        size = c.n_embd / c.n_head[0] if c.n_layer == LAYERS_27B else c.head_k
        return dataclasses.replace(
            c,
            window=c.window or 4096,
            windowed=c.windowed or all_but_each(2, c.n_layer),
            scale=1.0 / math.sqrt(size),
            softcap=c.softcap or 50.0,
            final_softcap=c.final_softcap or 30.0,
            embedding_scale=math.sqrt(c.n_embd),
        )

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + norm(self.attention(norm(x, l.attn_norm), l), l.post_attention_norm)
        return x + norm(self.feed_forward(norm(x, l.ffn_norm), l), l.post_ffw_norm)
