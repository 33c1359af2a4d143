"""Nomic's BERT: rotation and SwiGLU."""

from __future__ import annotations

from puna.models.encoder import Encoder

__all__ = ["NomicBert"]


class NomicBert(Encoder):
    """Post-norm encoder with rotation and a gated feed-forward block."""

    names = ("nomic-bert",)
    act = "silu"
    gated = True
