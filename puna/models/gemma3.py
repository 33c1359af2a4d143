"""Gemma 3: norms before and after each block, five sliding-window layers to each full one."""

from __future__ import annotations

import dataclasses
import math

from puna.graph import Node
from puna.models.blocks import attention, feed_forward, norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Gemma3"]

LAYERS_27B = 62


class Gemma3(Decoder):
    """Embeddings are scaled by sqrt(width); windowed layers rotate with a base of their own."""

    names = ("gemma3",)

    def configure(self, config: ModelConfig) -> ModelConfig:
        c = config
        # The 27B alone was trained with a query scale of its width over its heads.
        size = c.n_embd / c.n_head[0] if c.n_layer == LAYERS_27B else c.head_k
        return dataclasses.replace(
            c,
            windowed=c.windowed or tuple(i % 6 != 5 for i in range(c.n_layer)),
            rope_base_windowed=c.rope_base_windowed or 10000.0,
            scale=1.0 / math.sqrt(size),
            softcap=0.0,
        )

    def embed(self, x: Node) -> Node:
        return x * math.sqrt(self.config.n_embd)

    def layer(self, x: Node, l: Layer) -> Node:
        eps = self.config.norm_eps
        rope = self.config.rope(self.rope_layout, windowed=l.windowed)
        y = attention(norm(x, l.attn_norm, eps), l, rope)
        x = x + norm(y, l.post_attention_norm, eps)
        y = feed_forward(norm(x, l.ffn_norm, eps), l, act="gelu")
        return x + norm(y, l.post_ffw_norm, eps)
