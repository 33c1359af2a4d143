"""Qwen 3, dense and with experts, and the text halves of its vision and speech models: q and k normed a head."""

from __future__ import annotations

from typing import ClassVar

from puna.graph import Node, make
from puna.models.decoder import Decoder

__all__ = ["Qwen3"]


class Qwen3(Decoder):
    """Llama's layer with norms on q and k. Sections of rotated pairs tell image positions apart, not text's."""

    names: ClassVar[tuple[str, ...]] = ("qwen3", "qwen3moe", "qwen3tts", "qwen3vl", "qwen3vlmoe")
    qk_norm = True

    def scores(self, x: Node) -> Node:
        """Of a reranker: how likely each of its answers is."""
        return make("softmax", super().scores(x))
