"""MiniMax-01 and M1: lightning attention in most layers, softmax attention in the others, mixtures of experts."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models.blocks import attention, heads, linear, norm, split
from puna.models.decoder import Decoder
from puna.models.recurrent import flat, silu
from puna.models.weights import Layer

__all__ = ["MiniMax01"]


class MiniMax01(Decoder):
    """What goes into a block, normed, is added, times a factor, to what comes out."""

    names = ("minimax-01",)
    reads = ("residual_scale",)

    def layer(self, x: Node, l: Layer) -> Node:
        by, x = self.config.residual_scale or 1.0, norm(x, l.attn_norm)
        y = self.lightning(x, l) if l.attn_qkv else attention(x, l, self.rope(l))
        x = norm(y + x * by, l.ffn_norm)
        return self.feed_forward(x, l) + x * by

    def lightning(self, x: Node, l: Layer) -> Node:
        """Linear attention with a decay for each head, slower in later layers (Qin et al. 2024, arXiv:2401.04658)."""
        n, size = l.n_head, self.config.head_k
        qkv = heads(silu(linear(x, l.attn_qkv, 3 * n * size)), n, 3 * size)
        q, k, v = split(qkv, (size, size, size))
        y = make("scan", v, k, q, self.decays(l), state=l.attn_qkv.name)  # [T, heads, size]
        y = norm(flat(y), l.attn_norm_2)
        gate = make("act", linear(x, l.attn_gate, n * size), kind="sigmoid")
        return linear(gate * y, l.attn_output, self.config.n_embd)

    def decays(self, l: Layer) -> Node:
        """Slopes as those of ALiBi, times 1 in the first layer and next to 0 in the last: [heads, 1]."""
        by = 1.0 - l.index / max(1, self.config.n_layer - 1) + 1e-5
        slopes = (2.0 ** (-8.0 * (h + 1) / l.n_head) for h in range(l.n_head))
        return make("constant", values=tuple(-slope * by for slope in slopes), shape=(l.n_head, 1))
