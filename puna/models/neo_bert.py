"""NeoBERT: Llama's layer with q, k and v from one matrix, both ways."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.decoder import Decoder

__all__ = ["NeoBert"]


class NeoBert(Decoder):
    """Pre-norm encoder (Le Breton et al. 2025, arXiv:2502.19587)."""

    names = ("neo-bert",)
    rope_layout = "interleaved"
    causal = False
    has_head = False

    def final_norm(self, x: Node) -> Node:
        return norm(x, getattr(self.weights, "enc.output_norm"))
