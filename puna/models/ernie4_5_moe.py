"""ERNIE 4.5, mixtures of experts: a bias for the choice alone, dense layers in between."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Ernie45MoE"]


class Ernie45MoE(Decoder):
    """Pre-norm decoder."""

    names = ("ernie4_5-moe",)
    rope_layout = "interleaved"
    ignores = "cls", "attn_output.bias"
