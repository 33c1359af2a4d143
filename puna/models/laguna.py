"""Laguna: sigmoid routing, a gate on attention that is softplus, windows with a rotation of their own."""

from __future__ import annotations

import dataclasses

from puna.graph import Node, make
from puna.models.blocks import attention, heads, linear
from puna.models.config import ModelConfig, first_full
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Laguna"]


class Laguna(Decoder):
    """Pre-norm decoder, q and k normed a head; one gate for each head, or for each of its values."""

    names = ("laguna",)
    gating = "sigmoid"
    normed = False
    reads = (
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "rope.dimension_count_swa",
        "rope.freq_base_swa",
    )
    requires = ("exp_probs_b.bias",)

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        windowed = first_full(c, 4)
        return dataclasses.replace(c, windowed=windowed, rope_windowed=c.rope_windowed or c.rope_base)

    def attention(self, x: Node, l: Layer) -> Node:
        each = l.attn_gate.rows == l.n_head
        gate = linear(x, l.attn_gate, l.n_head if each else l.n_head * self.config.head_v)
        gate = make("act", gate, kind="softplus")
        return attention(x, l, self.rope(l), qk_norm=True, gate=heads(gate, l.n_head, 1) if each else gate)
