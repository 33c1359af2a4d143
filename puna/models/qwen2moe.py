"""Qwen 1.5 and 2, mixtures of experts: a gate on the shared expert."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Qwen2MoE"]


class Qwen2MoE(Decoder):
    """Pre-norm decoder whose experts' weights are left as the softmax over all gives them."""

    names = ("qwen2moe",)
    normed = False
    requires = "output", "ffn_gate_inp_shexp"
