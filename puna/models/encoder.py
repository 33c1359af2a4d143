"""What BERT's family shares: both ways of attention, and a norm after each block."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import norm, token_types
from puna.models.decoder import Decoder
from puna.models.weights import NORMS, Layer

__all__ = ["Encoder"]


class Encoder(Decoder):
    """Post-norm encoder (Devlin et al. 2018, arXiv:1810.04805), all of whose tokens see each other."""

    norm_kind = "layer"
    causal = False
    has_head = False
    act = "gelu_erf"
    gated = False
    requires = NORMS

    def embed(self, x: Node) -> Node:
        w = self.weights
        return norm(x + token_types(w) if w.token_types else x, w.token_embd_norm)

    def layer(self, x: Node, l: Layer) -> Node:
        x = norm(self.attention(x, l) + x, l.attn_output_norm)
        return norm(self.feed_forward(x, l) + x, l.layer_output_norm)

    def final_norm(self, x: Node) -> Node:
        return x
