"""Experts from groups, with a bias for the choice, and q and k normed a head: dots.llm1, Ling 2 and Ring 2."""

from __future__ import annotations

from puna.models.qwen3 import Qwen3

__all__ = ["Dots1"]


class Dots1(Qwen3):
    """Qwen 3 with DeepSeek 3's experts; its first layers are dense."""

    names = "dots1", "bailingmoe2"
    normed = False
    requires = ("output",)
