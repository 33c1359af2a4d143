"""Gemma 3: norms before and after each block, five sliding-window layers to each full one."""

from __future__ import annotations

import dataclasses
import math

from puna.graph import Node
from puna.models.blocks import attention, norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Gemma3"]

LAYERS_27B = 62


class Gemma3(Decoder):
    """Embeddings are scaled by sqrt(width); windowed layers rotate with a base of their own."""

    names = ("gemma3",)
    act = "gelu"
    reads = (
        "attention.sliding_window",
        "attention.sliding_window_pattern",
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
            windowed=c.windowed or tuple(i % 6 != 5 for i in range(c.n_layer)),
            rope_windowed=c.rope_windowed or 10000.0,
            scale=1.0 / math.sqrt(size),
            embedding_scale=math.sqrt(c.n_embd),
        )

    def layer(self, x: Node, l: Layer) -> Node:
        y = attention(norm(x, l.attn_norm), l, self.rope(l), qk_norm=True)
        x = x + norm(y, l.post_attention_norm)
        return x + norm(self.feed_forward(norm(x, l.ffn_norm), l), l.post_ffw_norm)
