"""OpenELM: widths and heads that grow from layer to layer, q and k normed a head."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["OpenELM"]


class OpenELM(Decoder):
    """Pre-norm decoder with q, k and v from one matrix and a tied output."""

    names = ("openelm",)
    qk_norm = True
