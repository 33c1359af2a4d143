"""The language half of Pocket TTS: layer norms, a feed-forward block without a gate."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import mlp
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["PocketTTS"]


class PocketTTS(Decoder):
    """Pre-norm decoder. Its speech is made elsewhere from what comes before the head; logits are the embedding's."""

    names = ("pockettts",)
    rope_layout = "interleaved"
    norm_kind = "layer"

    def feed_forward(self, x: Node, l: Layer) -> Node:
        return mlp(x, l, "gelu")
