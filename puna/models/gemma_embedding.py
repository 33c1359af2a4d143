"""EmbeddingGemma: Gemma 3's layers, both ways, and dense layers after the pooling in some files."""

from __future__ import annotations

from puna.models.gemma3 import Gemma3

__all__ = ["GemmaEmbedding"]


class GemmaEmbedding(Gemma3):
    """Encoder; its windows reach half as far to either side (Vera et al. 2025, arXiv:2509.20354)."""

    names = ("gemma-embedding",)
    causal = False
    has_head = False
