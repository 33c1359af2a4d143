"""Ling 3: Kimi Delta Attention with a bounded decay in most layers, gated latent attention in the others."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models.blocks import heads
from puna.models.decoder import Decoder
from puna.models.delta import kimi_delta_attention, projected
from puna.models.latent import KEYS, latent_attention, latent_sizes
from puna.models.recurrent import own_bias
from puna.models.weights import Layer

__all__ = ["BailingMoE3"]


class BailingMoE3(Decoder):
    """Pre-norm decoder with mixtures of experts; a layer's tensors tell what it is."""

    names = ("bailingmoe3",)
    normed = False
    reads = (*KEYS, "kda.gate_lower_bound", "kda.head_dim", "kda.safe_gate", "ssm.conv_kernel")
    requires = ("exp_probs_b.bias",)

    def attention(self, x: Node, l: Layer) -> Node:
        n, size = max(self.config.n_head), self.config.count("kda.head_dim", 0)
        if not l.ssm_conv1d_q:
            gate = make("act", projected(x, l.attn_gate, n), kind="sigmoid")
            return latent_attention(x, l, latent_sizes(self.config), self.rope(l), gate=heads(gate, n, 1))
        decay = heads(own_bias(projected(x, l.ssm_f_a, n * size), l.ssm_dt), n, size) * l.ssm_a.weight(n, 1)
        decay = make("act", decay, kind="sigmoid") * self.config.value("kda.gate_lower_bound", most=0.0)
        return kimi_delta_attention(x, l, projected(x, l.ssm_g_a, n * size), decay)
