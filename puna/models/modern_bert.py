"""ModernBERT: pre-norm, gated, two layers of each three see a window to either side."""

from __future__ import annotations

import dataclasses

from puna.graph import Node
from puna.models.blocks import feed_forward, norm
from puna.models.config import ModelConfig, first_full
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["ModernBert"]

ACTS = {"": "gelu_erf", "gelu": "gelu_erf", "silu": "silu", "swish": "silu"}


class ModernBert(Decoder):
    """Pre-norm encoder (Warner et al. 2024, arXiv:2412.13663); the embedding's norm is the first layer's."""

    names = ("modern-bert",)
    norm_kind = "layer"
    causal = False
    has_head = False
    reads = (
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "hidden_activation",
        "rope.freq_base_swa",
    )

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        if config.act not in ACTS:
            raise config.error("hidden_activation", f"no activation is called {config.act!r}")
        return dataclasses.replace(config, windowed=first_full(config, 3))

    def embed(self, x: Node) -> Node:
        return norm(x, self.weights.token_embd_norm)

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + self.attention(norm(x, l.attn_norm) if l.index or l.attn_norm.shape else x, l)
        return x + feed_forward(norm(x, l.ffn_norm), l, ACTS[self.config.act])

    def scores(self, x: Node) -> Node:
        raise self.config.error("pooling_type", "the classifier of this architecture is not supported")
