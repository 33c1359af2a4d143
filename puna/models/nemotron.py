"""Nemotron 3 and 4, Minitron: layer norms, squared relu, rotation of a part of each head."""

from __future__ import annotations

from puna.models.decoder import Decoder
from puna.models.weights import NORMS

__all__ = ["Nemotron"]


class Nemotron(Decoder):
    """Pre-norm decoder whose feed-forward block has no gate."""

    names = ("nemotron",)
    norm_kind = "layer"
    act = "relu2"
    gated = False
    requires = (*NORMS, "output")
