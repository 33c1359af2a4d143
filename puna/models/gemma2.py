"""Gemma 2: norms before and after each block, soft caps, a sliding window in every other layer."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.keys import all_but_each
from puna.models.weights import Layer

__all__ = ["Gemma2", "query_scale"]

LAYERS_27B = 46


def query_scale(c: ModelConfig, layers: int) -> float:
    """The factor on scores: the largest model, which has so many layers, was trained with its width over its heads."""
    return 1.0 / math.sqrt(c.n_embd / c.n_head[0] if c.n_layer == layers else c.head_k)


class Gemma2(Decoder):
    """Gemma with soft caps on scores and logits."""

    names: ClassVar[tuple[str, ...]] = ("gemma2",)
    act = "gelu"
    reads: ClassVar[tuple[str, ...]] = (
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "rope.freq_base_swa",
    )

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        return dataclasses.replace(
            c,
            window=c.window or 4096,
            windowed=c.windowed or all_but_each(2, c.n_layer),
            scale=query_scale(c, LAYERS_27B),
            softcap=c.softcap or 50.0,
            final_softcap=c.final_softcap or 30.0,
            embedding_scale=math.sqrt(c.n_embd),
        )

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + norm(self.attention(norm(x, l.attn_norm), l), l.post_attention_norm)
        return x + norm(self.feed_forward(norm(x, l.ffn_norm), l), l.post_ffw_norm)
