"""Qwen 2 and 2.5: Llama with biases on q, k and v, which `linear` finds in the file."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Qwen2"]


class Qwen2(Decoder):
    """Pre-norm decoder."""

    names = ("qwen2",)
