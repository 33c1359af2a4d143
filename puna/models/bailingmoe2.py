"""Ling 2 and Ring 2: experts chosen from groups, q and k normed a head."""

from __future__ import annotations

from puna.models.qwen3 import Qwen3

__all__ = ["BailingMoE2"]


class BailingMoE2(Qwen3):
    """Pre-norm decoder with q, k and v from one matrix, whose first layers are dense."""

    names = ("bailingmoe2",)
    normed = False
