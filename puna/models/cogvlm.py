"""The text half of CogVLM: Llama with q, k and v from one matrix."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models.blocks import attend, heads, linear, rotate, split
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["CogVLM"]


class CogVLM(Decoder):
    """Pre-norm decoder; matrices that only image tokens pass through have no part in text."""

    names = ("cogvlm",)
    ignores = "cls", "rope_freqs", "vis_attn_qkv", "vis_attn_output", "vis_gate", "vis_up", "vis_down"

    def attention(self, x: Node, l: Layer) -> Node:
        c, rope, n, width = self.config, self.rope(l), l.n_head_kv, l.n_head * self.config.head_k
        # A third of the rows each, of which keys and values take those of their heads.
        q, k, v = split(linear(x, l.attn_qkv, 3 * width), (width,) * 3)
        k, v = (heads(make("slice", part, start=0, size=n * c.head_k), n, c.head_k) for part in (k, v))
        y = attend(rotate(heads(q, l.n_head, c.head_k), rope), rotate(k, rope), v, l)
        return linear(y, l.attn_output, c.n_embd)
