"""StarCoder 2: layer norms, biases everywhere, a feed-forward block without a gate."""

from __future__ import annotations

from puna.models.decoder import Decoder
from puna.models.weights import BIASES

__all__ = ["Starcoder2"]


class Starcoder2(Decoder):
    """GPT-2's layer with rotation in place of learned positions."""

    names = ("starcoder2",)
    norm_kind = "layer"
    act = "gelu"
    gated = False
    requires = BIASES
