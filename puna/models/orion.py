"""Orion: Llama with layer norms."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Orion"]


class Orion(Decoder):
    """Pre-norm decoder."""

    names = ("orion",)
    norm_kind = "layer"
