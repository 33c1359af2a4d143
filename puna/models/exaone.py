"""EXAONE 3: Llama."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Exaone"]


class Exaone(Decoder):
    """Pre-norm decoder."""

    names = ("exaone",)
