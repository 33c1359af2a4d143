"""Qwen 3, mixtures of experts, and the text half of its vision models."""

from __future__ import annotations

from puna.models.qwen3 import Qwen3

__all__ = ["Qwen3MoE"]


class Qwen3MoE(Qwen3):
    """Qwen 3 with experts in each layer."""

    names = "qwen3moe", "qwen3vlmoe"
