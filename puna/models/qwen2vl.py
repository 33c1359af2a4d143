"""The text half of Qwen 2 VL and 2.5 VL: Qwen 2."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Qwen2VL"]


class Qwen2VL(Decoder):
    """Pre-norm decoder. Sections of rotated pairs tell image positions apart, not text's."""

    names = ("qwen2vl",)
    ignores = "cls", "output.bias"
