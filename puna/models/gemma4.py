"""Gemma 4: heads of one size in windowed layers and another in full ones, shared keys, experts beside a dense block."""

from __future__ import annotations

import dataclasses
import math

from puna.graph import Node, make
from puna.models.blocks import feed_forward, linear, norm, normalize
from puna.models.config import ModelConfig
from puna.models.experts import gated, mixture, route, routed
from puna.models.per_layer import SIZE, PerLayer
from puna.models.weights import Layer

__all__ = ["Gemma4"]


class Gemma4(PerLayer):
    """Norms before and after each block; a factor on what a layer makes."""

    names = ("gemma4",)
    reads = (
        *PerLayer.reads,
        "attention.key_length_swa",
        "attention.value_length_swa",
        "rope.dimension_count_swa",
    )

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = super().configure(config)
        return dataclasses.replace(c, rope_dims_windowed=c.rope_dims_windowed or c.head_k_windowed)

    def layers(self, x: Node) -> Node:
        size = self.config.count(SIZE, 0, least=0)
        self.inputs = self.layer_inputs(x, size) if size else ()
        return super().layers(x)

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + norm(self.attention(norm(x, l.attn_norm), l), l.post_attention_norm)
        x = x + norm(self.feed_forward(x, l), l.post_ffw_norm)
        if self.inputs:
            x = x + self.layer_input(x, l)
        return x * l.layer_output_scale.weight(1) if l.layer_output_scale else x

    def feed_forward(self, x: Node, l: Layer) -> Node:
        """What a layer's dense block and its experts, where it has some, make of x [T, width], before its norm."""
        y = feed_forward(norm(x, l.ffn_norm), l, self.act)
        if not l.ffn_gate_inp:
            return y
        return norm(y, l.post_ffw_norm_1) + norm(self.experts(x, l), l.post_ffw_norm_2)

    def experts(self, x: Node, l: Layer) -> Node:
        """The weighted sum of the experts, each of which has a factor of its own."""
        count, used = mixture(l).count, mixture(l).used
        read = normalize(x, self.config) * (1.0 / math.sqrt(self.config.n_embd))
        read = read * getattr(l, "ffn_gate_inp.scale").weight(self.config.n_embd)
        ids, weights = route(linear(read, l.ffn_gate_inp, count), l, "softmax", True)
        scale = getattr(l, "ffn_down_exps.scale")
        if scale:
            each = make("embed", scale.weight(count, 1), ids)  # [T, used, 1]
            weights = weights * make("reshape", each, shape=("T", used))
        return routed(norm(x, l.pre_ffw_norm_2), ids, weights, l, gated(self.act))
