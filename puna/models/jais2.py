"""Jais 2: layer norms, squared relu, biases everywhere."""

from __future__ import annotations

from puna.models.decoder import Decoder
from puna.models.weights import BIASES

__all__ = ["Jais2"]


class Jais2(Decoder):
    """Pre-norm decoder whose feed-forward block has no gate."""

    names = ("jais2",)
    norm_kind = "layer"
    act = "relu2"
    gated = False
    requires = BIASES
