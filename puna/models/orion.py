"""Orion: Llama with layer norms."""

from __future__ import annotations

from puna.models.decoder import Decoder
from puna.models.weights import NORMS

__all__ = ["Orion"]


class Orion(Decoder):
    """Llama's layer; the norms have biases."""

    names = ("orion",)
    norm_kind = "layer"
    requires = (*NORMS, "output")
