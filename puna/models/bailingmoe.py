"""Ling 1: Llama with fine-grained experts and a shared one."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["BailingMoE"]


class BailingMoE(Decoder):
    """Pre-norm decoder."""

    names = ("bailingmoe",)
    rope_layout = "interleaved"
    normed = False
