"""openPangu Embedded: Llama with biases."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["PanguEmbedded"]


class PanguEmbedded(Decoder):
    """Pre-norm decoder."""

    names = ("pangu-embedded",)
    ignores = "cls", "rope_freqs"
