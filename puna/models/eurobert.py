"""EuroBERT: Llama's layer, both ways."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["EuroBert"]


class EuroBert(Decoder):
    """Pre-norm encoder (Boizard et al. 2025, arXiv:2503.05500)."""

    names = ("eurobert",)
    causal = False
    has_head = False
