"""Llama both ways, for embeddings."""

from __future__ import annotations

from puna.models.llama import Llama

__all__ = ["LlamaEmbed"]


class LlamaEmbed(Llama):
    """Pre-norm encoder."""

    names = ("llama-embed",)
    causal = False
    has_head = False
