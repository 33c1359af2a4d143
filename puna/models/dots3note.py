"""dots.note: latent attention of two sizes, in windows or over chosen positions, with a gate for each head."""

from __future__ import annotations

import dataclasses

from puna.graph import Node, make
from puna.models import indexer, latent
from puna.models.blocks import heads, linear
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.latent import latent_attention, latent_queries, latent_sizes
from puna.models.weights import Layer

__all__ = ["Dots3Note"]


class Dots3Note(Decoder):
    """Pre-norm decoder whose first layers are dense; the part of a key that is rotated is normed."""

    names = ("dots3note",)
    rope_layout = "interleaved"
    normed = False
    reads = (
        *latent.KEYS,
        *indexer.KEYS,
        "attention.indexer.types",
        "attention.key_length_mla_swa",
        "attention.key_length_swa",
        "attention.kv_lora_rank_swa",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.value_length_mla_swa",
        "attention.value_length_swa",
        "rope.freq_base_swa",
    )
    requires = "attn_k_norm", "exp_probs_b.bias"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, stretch_windowed=True)

    def attention(self, x: Node, l: Layer) -> Node:
        sizes = latent_sizes(self.config, "_swa" if l.windowed else "")
        queries = latent_queries(x, l)
        chosen = None if l.windowed else indexer.indexed(x, queries, l, "halves")
        gate = make("act", linear(x, l.attn_gate, l.n_head), kind="sigmoid")
        return latent_attention(
            x, l, sizes, self.rope(l), queries=queries, chosen=chosen, gate=heads(gate, l.n_head, 1)
        )
