"""ERNIE 4.5: Llama; its mixtures of experts have dense layers in between and a bias for the choice alone."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Ernie45"]


class Ernie45(Decoder):
    """Llama without its factors on frequencies; a bias of attention's output has no effect."""

    names = "ernie4_5", "ernie4_5-moe"
    rope_layout = "interleaved"
    ignores = "cls", "attn_output.bias"
