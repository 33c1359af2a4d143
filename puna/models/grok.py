"""Grok 1 and 2: norms before and after each block, soft caps; Grok 2 has a dense block beside the experts."""

from __future__ import annotations

import dataclasses
import math

from puna.graph import Node
from puna.models.blocks import feed_forward, norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Grok"]


class Grok(Decoder):
    """Decoder whose factors are Grok 1's where the file has none."""

    names = ("grok",)
    act = "gelu"
    reads = (
        "attention.output_scale",
        "attn_logit_softcapping",
        "embedding_scale",
        "final_logit_softcapping",
        "logit_scale",
    )

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        return dataclasses.replace(
            c,
            scale=c.own.get("attention.output_scale", 0.08838834764831845),
            softcap=c.softcap or 30.0,
            embedding_scale=c.embedding_scale or 78.38367176906169,
            logit_scale=c.logit_scale or 0.5773502691896257,
        )

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + norm(self.attention(norm(x, l.attn_norm), l), l.attn_output_norm)
        y = norm(x, l.ffn_norm)
        z = self.feed_forward(y, l)
        if l.ffn_up:
            z = (z + feed_forward(y, l, self.act)) * math.sqrt(0.5)
        return x + norm(z, l.layer_output_norm or l.post_ffw_norm)
