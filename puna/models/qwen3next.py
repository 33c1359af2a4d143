"""Qwen 3 Next: Gated DeltaNet in most layers, gated attention in the others, mixtures of experts."""

from __future__ import annotations

from typing import ClassVar

from puna.graph import Node, Rope, make
from puna.models.blocks import apply_gate, attend, head_norm, heads, linear, norm, rotate, split
from puna.models.decoder import Decoder
from puna.models.delta import gated_delta_net
from puna.models.recurrent import SSM, StateSpace, flat
from puna.models.weights import Layer

__all__ = ["Qwen3Next", "gated_attention"]


class Qwen3Next(Decoder):
    """Pre-norm decoder; a layer's tensors tell what it is."""

    names: ClassVar[tuple[str, ...]] = ("qwen3next",)
    reads: ClassVar[tuple[str, ...]] = SSM
    requires = ("ffn_gate_inp_shexp",)

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + self.attention(norm(x, l.attn_norm), l)
        return x + self.feed_forward(norm(x, l.post_attention_norm), l)

    def attention(self, x: Node, l: Layer) -> Node:
        if l.ssm_conv1d:
            return self.delta_net(x, l, StateSpace.of(self.config))
        return gated_attention(x, l, self.rope(l))

    def delta_net(self, x: Node, l: Layer, s: StateSpace) -> Node:
        """The heads of v that share one of q and k stand together; so do their betas and alphas."""
        each = s.rank // s.groups
        parts = split(heads(linear(x, l.ssm_ba, 2 * s.rank), s.groups, 2 * each), (each, each))
        beta, alpha = (make("reshape", part, shape=("T", s.rank)) for part in parts)
        qkv, z = self.qkvz(x, l, s)
        return gated_delta_net(qkv, z, alpha, beta, l, s, tiled=False)

    def qkvz(self, x: Node, l: Layer, s: StateSpace) -> tuple[Node, Node]:
        """From two matrices, or as older files have it from one, each group's q, k, v and z together."""
        if l.attn_qkv:
            l.ssm_in.ignore()
            qkv = linear(x, l.attn_qkv, 2 * s.groups * s.size + s.inner)
            return qkv, linear(x, l.attn_gate, s.inner)
        sizes = s.size, s.size, s.inner // s.groups, s.inner // s.groups
        mixed = heads(linear(x, l.ssm_in, s.groups * sum(sizes)), s.groups, sum(sizes))
        parts = zip(split(mixed, sizes), sizes, strict=True)
        q, k, v, z = (heads(flat(part), 1, s.groups * size) for part, size in parts)
        return flat(make("cat", make("cat", q, k), v)), flat(z)


def gated_attention(x: Node, l: Layer, rope: Rope | None) -> Node:
    """Attention whose queries come with a gate each, of x [T, width]: [T, width]."""
    c, n, size = l.config, l.n_head, l.config.head_k
    q, gate = split(heads(linear(x, l.attn_q, 2 * n * size), n, 2 * size), (size, size))
    k, v = (
        heads(linear(x, p, l.n_head_kv * s), l.n_head_kv, s)
        for p, s in ((l.attn_k, size), (l.attn_v, c.head_v))
    )
    q, k = (rotate(head_norm(y, p), rope) for y, p in ((q, l.attn_q_norm), (k, l.attn_k_norm)))
    y = attend(q, k, v, l)
    return linear(apply_gate(y, make("act", flat(gate), kind="sigmoid")), l.attn_output, c.n_embd)
