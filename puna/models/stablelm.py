"""StableLM: layer norms, rotation of a part of each head; the 12B runs its blocks side by side."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention, norm
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["StableLM"]


class StableLM(Decoder):
    """Decoder whose blocks share one norm where the file has no second, and whose q and k may be normed."""

    names = ("stablelm",)
    norm_kind = "layer"
    reads = ("use_parallel_residual",)  # the norms that a file has tell it
    requires = "output", "output_norm.bias", "attn_norm.bias"

    def layer(self, x: Node, l: Layer) -> Node:
        y = norm(x, l.attn_norm)
        x = x + attention(y, l, self.rope(l), qk_norm=bool(l.attn_q_norm))
        return x + self.feed_forward(norm(x, l.ffn_norm) if l.ffn_norm else y, l)
