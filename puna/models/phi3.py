"""Phi 3, 3.5 and 4: q, k and v from one matrix, gate and up from another, LongRoPE factors."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Phi3"]


class Phi3(Decoder):
    """Pre-norm decoder. The sliding window that its files name is left out: it was trained to see all."""

    names = ("phi3",)
