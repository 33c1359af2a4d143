"""DeepSeek MoE: Llama with fine-grained experts, and shared ones."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["DeepSeek"]


class DeepSeek(Decoder):
    """Pre-norm decoder whose first layers are dense."""

    names = ("deepseek",)
    rope_layout = "interleaved"
    normed = False
