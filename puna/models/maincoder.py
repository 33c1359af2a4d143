"""Maincoder: Llama with q and k normed a head after rotation."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Maincoder"]


class Maincoder(Decoder):
    """Llama's layer with these norms."""

    names = ("maincoder",)
    rope_layout = "interleaved"

    def attention(self, x: Node, l: Layer) -> Node:
        return attention(x, l, self.rope(l), qk_norm=True, norm_rotated=True)
