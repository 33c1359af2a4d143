"""dots.llm1: DeepSeek 3's experts with plain attention, q and k normed a head."""

from __future__ import annotations

from puna.models.qwen3 import Qwen3

__all__ = ["Dots1"]


class Dots1(Qwen3):
    """Pre-norm decoder whose first layers are dense."""

    names = ("dots1",)
    normed = False
