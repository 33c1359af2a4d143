"""XVERSE: Llama."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Xverse"]


class Xverse(Decoder):
    """Pre-norm decoder."""

    names = ("xverse",)
    rope_layout = "interleaved"
