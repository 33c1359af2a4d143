"""Command A, mixture of experts: Cohere 2 with experts, whose sum with the shared one is halved."""

from __future__ import annotations

import dataclasses

from puna.graph import Node, Rope
from puna.models.command_r import CommandR
from puna.models.config import ModelConfig, first_full
from puna.models.weights import Layer

__all__ = ["Cohere2MoE"]


class Cohere2MoE(CommandR):
    """Parallel decoder; rotates in windowed layers, and in the first, dense ones."""

    names = ("cohere2moe",)
    norm_kind = "any"
    gating = "sigmoid"
    normed = False
    reads = "attention.sliding_window", "attention.sliding_window_pattern", "logit_scale"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, windowed=first_full(config, 4))

    def rope(self, l: Layer) -> Rope | None:
        return super().rope(l) if l.windowed or not l.ffn_gate_inp else None

    def feed_forward(self, x: Node, l: Layer) -> Node:
        y = super().feed_forward(x, l)
        return y * 0.5 if l.ffn_up_shexp else y
