"""Muse Glimmer: norms before and after each block, windows, gates on attention, no rotation in full layers."""

from __future__ import annotations

import dataclasses

from puna.graph import Node, Rope, make
from puna.models.blocks import attention, linear, norm, normalize
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.keys import all_but_each
from puna.models.weights import Layer, Parameter

__all__ = ["MuseGlimmer"]

POST_EPS = 1e-8


class MuseGlimmer(Decoder):
    """Decoder whose embeddings are normed and whose norms after a block have an epsilon of their own."""

    names = ("muse-glimmer",)
    rope_layout = "interleaved"
    reads = (
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "final_logit_softcapping",
        "logit_scale",
        "rope.freq_base_swa",
    )
    requires = ("output",)

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        return dataclasses.replace(
            c, windowed=c.windowed or all_but_each(4, c.n_layer), final_softcap=c.final_softcap or 30.0
        )

    def embed(self, x: Node) -> Node:
        return normalize(x, self.config)

    def rope(self, l: Layer) -> Rope | None:
        return super().rope(l) if l.windowed else None

    def attention(self, x: Node, l: Layer) -> Node:
        gate = make("act", linear(x, l.attn_gate, l.n_head * self.config.head_v), kind="sigmoid")
        return attention(x, l, self.rope(l), qk_norm=True, gate=gate)

    def layer(self, x: Node, l: Layer) -> Node:
        def after(y: Node, p: Parameter) -> Node:
            return make("normalize", y, kind="rms", eps=POST_EPS) * p.weight(self.config.n_embd)

        x = x + after(self.attention(norm(x, l.attn_norm), l), l.post_attention_norm)
        return x + after(self.feed_forward(norm(x, l.ffn_norm), l), l.post_ffw_norm)
