"""LLaDA with experts: Qwen 3's layer with experts, both ways."""

from __future__ import annotations

from puna.models.qwen3 import Qwen3

__all__ = ["LLaDAMoE"]


class LLaDAMoE(Qwen3):
    """Text diffusion."""

    names = ("llada-moe",)
    causal = False
    normed = False
    requires = ("output",)
