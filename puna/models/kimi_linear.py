"""Kimi Linear: Kimi Delta Attention in most layers, latent attention without positions in the others."""

from __future__ import annotations

from typing import ClassVar

from puna.graph import Node, make
from puna.models.blocks import heads
from puna.models.decoder import Decoder
from puna.models.delta import kimi_delta_attention, projected
from puna.models.latent import KEYS, latent_attention, latent_sizes
from puna.models.recurrent import own_bias
from puna.models.weights import Layer

__all__ = ["KimiLinear"]


class KimiLinear(Decoder):
    """Pre-norm decoder with mixtures of experts; a layer's tensors tell what it is."""

    names: ClassVar[tuple[str, ...]] = ("kimi-linear",)
    reads: ClassVar[tuple[str, ...]] = (*KEYS, "kda.gate_lower_bound", "kda.head_dim", "ssm.conv_kernel")
    requires = "output", "exp_probs_b.bias"

    def attention(self, x: Node, l: Layer) -> Node:
        if not l.ssm_conv1d_q:
            return latent_attention(x, l, latent_sizes(self.config), None)
        n, size = max(self.config.n_head), self.config.count("kda.head_dim", 0)
        gate = projected(projected(x, l.ssm_g_a, size), l.ssm_g_b, n * size)
        decay = projected(projected(x, l.ssm_f_a, size), l.ssm_f_b, n * size)
        decay = heads(make("act", own_bias(decay, l.ssm_dt), kind="softplus"), n, size)
        return kimi_delta_attention(x, l, gate, decay * l.ssm_a.weight(n, 1))

    def bounded_decay(self, x: Node, l: Layer) -> Node:
        """A decay no lower than the file's bound, of x [T, width]: [T, heads, size]."""
        n, size = max(self.config.n_head), self.config.count("kda.head_dim", 0)
        decay = projected(projected(x, l.ssm_f_a, size), l.ssm_f_b, n * size)
        decay = heads(own_bias(decay, l.ssm_dt), n, size) * l.ssm_a.weight(n, 1)
        return make("act", decay * -1.0, kind="sigmoid") * self.config.value("kda.gate_lower_bound", most=0.0)
