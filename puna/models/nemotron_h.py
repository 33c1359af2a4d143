"""Nemotron H and Nemotron 3: Mamba 2, attention without positions, and feed-forward blocks, one of them a layer."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models.blocks import attention, linear, mlp, norm
from puna.models.decoder import Decoder
from puna.models.experts import mixture, route
from puna.models.recurrent import SSM, mamba2
from puna.models.weights import Layer

__all__ = ["NemotronH"]


class NemotronH(Decoder):
    """Each layer is one block after a norm; its tensors tell which."""

    names = ("nemotron_h", "nemotron_h_moe")
    reads = SSM
    requires = ("ssm_norm",)

    def layer(self, x: Node, l: Layer) -> Node:
        return x + self.block(norm(x, l.attn_norm), l)

    def block(self, x: Node, l: Layer) -> Node:
        if l.ssm_in:
            return mamba2(x, l)
        if l.ffn_gate_inp:
            return self.mixture(x, l)
        return mlp(x, l, "relu2") if l.ffn_up else attention(x, l, rope=None)

    def mixture(self, x: Node, l: Layer) -> Node:
        """Experts without a gate, which may work in a narrower space, and a shared one that all tokens pass through."""
        m, down = mixture(l), l.ffn_down_exps
        ids, weights = route(linear(x, l.ffn_gate_inp, m.count), l, "sigmoid", self.normed)
        y = linear(x, l.ffn_latent_down, l.ffn_latent_down.rows) if l.ffn_latent_down else x
        width, inner = y.type.shape[1], down.shape[-1] if down else l.n_ff
        y = make("linear_experts", y, l.ffn_up_exps.weight(m.count, inner, width), ids)
        y = make("linear_experts", make("act", y, kind="relu2"), down.weight(m.count, width, inner), ids)
        y = make("weighted_sum", y, weights)
        y = linear(y, l.ffn_latent_up, self.config.n_embd) if l.ffn_latent_up else y
        up = linear(x, l.ffn_up_shexp, l.ffn_up_shexp.rows)
        return y + linear(make("act", up, kind="relu2"), l.ffn_down_shexp, self.config.n_embd)
