"""Command R: attention and feed-forward side by side after one norm, a factor on logits, tied output."""

from __future__ import annotations

from typing import ClassVar

from puna.graph import Node
from puna.models.blocks import attention, norm
from puna.models.config import Norm
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["CommandR"]


class CommandR(Decoder):
    """Parallel decoder; the largest, R+, norms queries and keys a head."""

    names: ClassVar[tuple[str, ...]] = ("command-r",)
    norm_kind: ClassVar[Norm] = "layer"
    rope_layout = "interleaved"
    reads: ClassVar[tuple[str, ...]] = ("logit_scale",)

    def layer(self, x: Node, l: Layer) -> Node:
        y = norm(x, l.attn_norm)
        return x + self.feed_forward(y, l) + self.attention(y, l)

    def attention(self, x: Node, l: Layer) -> Node:
        return attention(x, l, self.rope(l), qk_norm=bool(l.attn_q_norm))
