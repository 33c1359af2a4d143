"""Llama, and the models that share its layer: Mistral, SmolLM2, Mixtral's mixture of experts."""

from __future__ import annotations

from typing import ClassVar

from puna.models.decoder import Decoder

__all__ = ["Llama"]


class Llama(Decoder):
    """Pre-norm decoder with grouped-query attention; rope_freqs hold Llama 3's frequency factors."""

    names: ClassVar[tuple[str, ...]] = ("llama", "mistral3")
    rope_layout = "interleaved"
    reads = ("attention.temperature_scale",)
