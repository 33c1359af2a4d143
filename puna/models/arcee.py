"""Arcee AFM: Llama with a feed-forward block of squared relu, without a gate."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Arcee"]


class Arcee(Decoder):
    """Llama's layer but for the feed-forward block."""

    names = ("arcee",)
    rope_layout = "interleaved"
    act = "relu2"
    gated = False
