"""DeepSeek 4: attention to a window and to pooled blocks, and mixtures of experts, on mixed residual streams."""

from __future__ import annotations

import dataclasses

from puna.graph import Node, Rope, make
from puna.models import pooled, streams
from puna.models.blocks import heads, linear, normalize, rotate_end
from puna.models.config import ModelConfig
from puna.models.experts import experts, hashed
from puna.models.keys import LEAST
from puna.models.latent import latent_queries
from puna.models.recurrent import flat
from puna.models.weights import Layer

__all__ = ["DeepSeek4"]


class DeepSeek4(streams.Mixed):
    """Pre-norm decoder, all of whose layers look back through a window."""

    names = ("deepseek4",)
    rope_layout = "interleaved"
    gating = "sqrt_softplus"
    ignores = (*streams.Mixed.ignores, "exp_probs_b_vl.bias")  # of tokens of images
    reads = (
        *streams.MIXED,
        *pooled.KEYS,
        "attention.compress_rope_freq_base",
        "attention.output_group_count",
        "attention.output_lora_rank",
        "attention.q_lora_rank",
        "attention.sliding_window",
        "hash_layer_count",
    )
    requires = "output", "attn_sinks", "exp_probs_b.bias"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        # Stretched rotations are no longer than others.
        yarn = dataclasses.replace(config.yarn, log_multiplier=1.0) if config.yarn else None
        return dataclasses.replace(config, windowed=(True,) * config.n_layer, yarn=yarn)

    def rope(self, l: Layer) -> Rope:
        """Of a window alone it is not stretched."""
        c = self.config
        if not pooled.block_size(l):
            return Rope(c.rope_dims, c.rope_base, self.rope_layout)
        base = c.value("attention.compress_rope_freq_base", least=1.0 + LEAST)
        return Rope(c.rope_dims, base, self.rope_layout, c.rope_factor, yarn=c.yarn)

    def attention(self, x: Node, l: Layer) -> Node:
        c, n, size, rope = self.config, l.n_head, self.config.head_k, self.rope(l)
        queries = latent_queries(x, l)
        q = rotate_end(normalize(heads(linear(queries, l.attn_q_b, n * size), n, size), c), rope)
        y = pooled.pooled_attention(x, queries, q, l, rope)  # [T, n * size]
        groups = c.count("attention.output_group_count", 0, most=2**16)
        rank = c.count("attention.output_lora_rank", 0, most=2**24)
        y = make("reshape", y, shape=("T", groups, n * size // groups))
        y = make("linear_heads", y, l.attn_output_a.weight(groups, rank, n * size // groups))
        return linear(flat(y), l.attn_output_b, c.n_embd)

    def feed_forward(self, x: Node, l: Layer) -> Node:
        """The first layers' experts follow from the token alone."""
        is_hashed = l.index < self.config.count("hash_layer_count", 0, least=0)
        return experts(x, l, self.act, gating=self.gating, ids=hashed(l) if is_hashed else None)

    def final_norm(self, x: Node) -> Node:
        return streams.last(x, self)
