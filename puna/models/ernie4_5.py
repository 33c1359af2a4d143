"""ERNIE 4.5, dense: Llama."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Ernie45"]


class Ernie45(Decoder):
    """Pre-norm decoder."""

    names = ("ernie4_5",)
    rope_layout = "interleaved"
    ignores = "cls", "attn_output.bias"
