"""Ling 1: Llama with fine-grained experts and a shared one."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["BailingMoE"]


class BailingMoE(Decoder):
    """Llama's layer; the experts' weights are left as the softmax over all gives them."""

    names = ("bailingmoe",)
    rope_layout = "interleaved"
    normed = False
    requires = ("output",)
