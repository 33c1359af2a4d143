"""MiniCPM 3: multi-head latent attention, where queries, and keys with values, pass through a narrow layer."""

from __future__ import annotations

import dataclasses
import math

from puna.graph import Node, make
from puna.models.blocks import attend, heads, linear, norm, rope_factors, rotate, split
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["MiniCPM3"]

DIM_MODEL_BASE = 256


class MiniCPM3(Decoder):
    """Pre-norm decoder with MiniCPM's factors. A head's key is a part of its own and a rotated one that all share."""

    names = ("minicpm3",)
    reads = "attention.kv_lora_rank", "attention.q_lora_rank"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(
            config,
            embedding_scale=12.0,
            residual_scale=1.4 / math.sqrt(config.n_layer),
            logit_scale=DIM_MODEL_BASE / config.n_embd,
        )

    def attention(self, x: Node, l: Layer) -> Node:
        c, n, rope, factors = self.config, l.n_head, self.rope(l), rope_factors(l)
        plain = c.head_k - c.rope_dims
        q = norm(linear(x, l.attn_q_a, c.q_rank), l.attn_q_a_norm)
        q = heads(linear(q, l.attn_q_b, n * c.head_k), n, c.head_k)
        q, q_turned = split(q, (plain, c.rope_dims))
        kv, turned = split(linear(x, l.attn_kv_a_mqa, c.kv_rank + c.rope_dims), (c.kv_rank, c.rope_dims))
        kv = linear(norm(kv, l.attn_kv_a_norm), l.attn_kv_b, n * (plain + c.head_v))
        k, v = split(heads(kv, n, plain + c.head_v), (plain, c.head_v))
        q = make("cat", q, rotate(q_turned, rope, factors))
        k = make("cat", k, rotate(heads(turned, 1, c.rope_dims), rope, factors))  # [T, n_head, head_k]
        return linear(attend(q, k, v, l), l.attn_output, c.n_embd)
