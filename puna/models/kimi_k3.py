"""Kimi K3: Kimi Linear with experts in a narrower space, and attention over the depth of the residual stream."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models.blocks import heads, linear, norm
from puna.models.delta import kimi_delta_attention, projected
from puna.models.experts import mixture, route, routed, shared
from puna.models.keys import LEAST
from puna.models.kimi_linear import KimiLinear
from puna.models.latent import latent_attention, latent_sizes
from puna.models.streams import joined
from puna.models.weights import Layer, Parameter

__all__ = ["KimiK3"]


class KimiK3(KimiLinear):
    """Each few layers the stream is put aside and begun anew; blocks read a mean of all that was put aside and of it.

    The weights of that mean are a softmax of learned scores.
    """

    names = ("kimi-k3",)
    normed = False
    reads = (
        *KimiLinear.reads,
        "activation.situ_beta",
        "activation.situ_linear_beta",
        "attn_res.block_size",
        "expert_latent_length",
    )
    requires = "output", "exp_probs_b.bias"

    def layers(self, x: Node) -> Node:
        each, aside = self.config.count("attn_res.block_size", 0), list[Node]()
        for index in range(self.config.n_layer):
            l = Layer(self.weights, self.config, index)
            y = self.attention(norm(self.mean(aside, x, l.attn_res_score), l.attn_norm), l)
            if index % each == 0:
                aside.append(x)
                x = y
            else:
                x = x + y
            x = x + self.feed_forward(norm(self.mean(aside, x, l.ffn_res_score), l.ffn_norm), l)
        return self.mean(aside, x, self.weights.output_res_score)

    def mean(self, aside: list[Node], x: Node, p: Parameter) -> Node:
        """x [T, width] and what was put aside, by their scores: [T, width]."""
        if not aside:
            p.ignore()
            return x
        width, eps = self.config.n_embd, self.config.norm_eps
        parts = [*aside, x]
        scores = [linear(make("normalize", part, kind="rms", eps=eps), p, 1) for part in parts]  # [T, 1]
        weights = make("softmax", joined(scores))  # [T, parts]
        return make("weighted_sum", heads(joined(parts), len(parts), width), weights)

    def attention(self, x: Node, l: Layer) -> Node:
        if not l.ssm_conv1d_q:
            gate = make("act", linear(x, l.attn_gate, l.attn_gate.rows), kind="sigmoid")
            return latent_attention(x, l, latent_sizes(self.config), None, gate=gate)
        return kimi_delta_attention(x, l, projected(x, l.ssm_g, l.ssm_g.rows), self.bounded_decay(x, l))

    def feed_forward(self, x: Node, l: Layer) -> Node:
        if not l.ffn_gate_inp:
            y = self.combine(linear(x, l.ffn_gate, l.n_ff), linear(x, l.ffn_up, l.n_ff))
            return linear(y, l.ffn_down, self.config.n_embd)
        ids, weights = route(linear(x, l.ffn_gate_inp, mixture(l).count), l, self.gating, self.normed)
        narrow = linear(x, l.ffn_routed_down, self.config.count("expert_latent_length", 0, most=2**24))
        y = norm(routed(narrow, ids, weights, l, self.combine), l.ffn_routed_norm)
        return linear(y, l.ffn_routed_up, self.config.n_embd) + shared(x, l, self.combine)

    def combine(self, gate: Node, up: Node) -> Node:
        """SiTU: SwiGLU with both factors bounded by a tanh."""
        c = self.config
        bound = make("softcap", gate, cap=c.value("activation.situ_beta", least=LEAST))
        up = make("softcap", up, cap=c.value("activation.situ_linear_beta", least=LEAST))
        return bound * make("act", gate, kind="sigmoid") * up
