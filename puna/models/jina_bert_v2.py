"""Jina's BERT with ALiBi, which falls to both sides; norms over all heads of q and k in some of its files."""

from __future__ import annotations

import dataclasses

from puna.graph import Node
from puna.models.blocks import attention, feed_forward, mlp, norm
from puna.models.config import ModelConfig
from puna.models.encoder import Encoder
from puna.models.weights import Layer

__all__ = ["JinaBertV2"]


class JinaBertV2(Encoder):
    """Post-norm encoder without rotation; gated feed-forward blocks but for its smallest files."""

    names = ("jina-bert-v2",)
    rotates = False
    reads = ("attention.max_alibi_bias",)

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, alibi=config.alibi or 8.0)

    def attention(self, x: Node, l: Layer) -> Node:
        return attention(x, l, None, qk_norm=bool(l.attn_q_norm))

    def layer(self, x: Node, l: Layer) -> Node:
        y = norm(self.attention(x, l) + x, l.attn_output_norm)
        y = norm(y + x, l.attn_norm_2) if l.attn_norm_2 else y
        return norm(self.feed_forward(y, l) + y, l.layer_output_norm)

    def feed_forward(self, x: Node, l: Layer) -> Node:
        is_gated = l.ffn_gate or l.ffn_up.rows == 2 * l.n_ff
        return feed_forward(x, l, self.act) if is_gated else mlp(x, l, self.act)
