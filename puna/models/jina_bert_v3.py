"""Jina's BERT with rotation."""

from __future__ import annotations

from puna.models.encoder import Encoder

__all__ = ["JinaBertV3"]


class JinaBertV3(Encoder):
    """Post-norm encoder."""

    names = ("jina-bert-v3",)
