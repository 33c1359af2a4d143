"""Phi 3.5, mixture of experts: Phi 3 with biases on its norms."""

from __future__ import annotations

from puna.models.decoder import Decoder
from puna.models.weights import NORMS

__all__ = ["PhiMoE"]


class PhiMoE(Decoder):
    """Pre-norm decoder with LongRoPE factors."""

    names = ("phimoe",)
    requires = (*NORMS, "attn_output.bias", "output.bias")
