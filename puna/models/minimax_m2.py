"""MiniMax M2: sigmoid routing, q and k normed over all heads."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["MiniMaxM2"]


class MiniMaxM2(Decoder):
    """Pre-norm decoder that rotates a part of each head."""

    names = ("minimax-m2",)
    gating = "sigmoid"
    qk_norm = True
    requires = "output", "exp_probs_b.bias"
