"""Qwen 3: Llama's layer with q and k normed a head; the text halves of its vision and speech models are the same."""

from __future__ import annotations

from typing import ClassVar

from puna.graph import Node, make
from puna.models.blocks import attention
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Qwen3"]


class Qwen3(Decoder):
    """Pre-norm decoder with norms on q and k. Sections of rotated pairs tell image positions apart, not text's."""

    names: ClassVar[tuple[str, ...]] = ("qwen3", "qwen3vl", "qwen3tts")

    def attention(self, x: Node, l: Layer) -> Node:
        return attention(x, l, self.rope(l), qk_norm=True)

    def scores(self, x: Node) -> Node:
        """Of a reranker: how likely each of its answers is."""
        return make("softmax", super().scores(x))
