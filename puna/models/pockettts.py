"""The language half of Pocket TTS: layer norms, a feed-forward block without a gate."""

from __future__ import annotations

from puna.models.decoder import Decoder
from puna.models.weights import NORMS

__all__ = ["PocketTTS"]


class PocketTTS(Decoder):
    """Pre-norm decoder. Its speech is made elsewhere from what comes before the head; logits are the embedding's."""

    names = ("pockettts",)
    rope_layout = "interleaved"
    norm_kind = "layer"
    act = "gelu"
    gated = False
    requires = NORMS
