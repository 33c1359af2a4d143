"""Gemma 3n: several residual streams of which a layer computes one, an input of its own for each layer, shared keys."""

from __future__ import annotations

import dataclasses
import math
from typing import cast

from puna.graph import Node, make
from puna.models import altup
from puna.models.blocks import linear, norm
from puna.models.config import ModelConfig
from puna.models.keys import all_but_each
from puna.models.per_layer import SHARED, SIZE, PerLayer
from puna.models.streams import MOST
from puna.models.weights import Layer

__all__ = ["Gemma3n"]

COUNT, ACTIVE = "altup.num_inputs", "altup.active_idx"


class Gemma3n(PerLayer):
    """AltUp's streams, a low-rank map beside attention (LAuReL, Menghani et al. 2024, arXiv:2411.07501)."""

    names = ("gemma3n",)
    reads = (*PerLayer.reads, ACTIVE, COUNT, "activation_sparsity_scale")

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = super().configure(config)
        sparse = min(10, c.n_layer)
        return dataclasses.replace(
            c,
            windowed=c.windowed or all_but_each(5, c.n_layer),
            final_softcap=c.final_softcap or 30.0,
            sparsity=c.sparsity or (1.6448536,) * sparse + (-math.inf,) * (c.n_layer - sparse),
            own={SHARED: max(0, c.n_layer - 20), **c.own},
        )

    def layers(self, x: Node) -> Node:
        self.inputs = self.layer_inputs(x, self.config.count(SIZE, 256))
        x = altup.stack(x, self.config.count(COUNT, 4, least=2, most=MOST), self.weights.altup_proj)
        return altup.merge(super().layers(x), self.weights.altup_unembd_proj)

    def layer(self, x: Node, l: Layer) -> Node:
        """One layer: streams x [T, n, width] -> the same."""
        c = self.config
        index = c.count(ACTIVE, 0, least=0, most=cast(int, x.type.shape[1]) - 1)
        x = altup.predict(x, l, index)
        before = altup.active(x, index)
        y = norm(before, l.attn_norm)
        low = linear(y, l.laurel_l, l.laurel_l.rows)
        laurel = y + norm(linear(low, l.laurel_r, c.n_embd), l.laurel_post_norm)
        y = before + norm(self.attention(y, l), l.post_attention_norm)
        y = (y + laurel) * math.sqrt(0.5)
        y = y + norm(self.feed_forward(norm(y, l.ffn_norm), l), l.post_ffw_norm)
        x = altup.correct(x, y, l, index)
        y = altup.active(x, index) * l.altup_correct_scale.weight(c.n_embd)
        return altup.add_to_others(x, self.layer_input(y, l))

    def feed_forward(self, x: Node, l: Layer) -> Node:
        """Gated, where inner values count that are so many deviations above their mean, and by how far they are.

        The deviation is that of all values, as transformers has it; llama.cpp divides by one less than there are.
        """
        gate, up = linear(x, l.ffn_gate, l.n_ff), linear(x, l.ffn_up, l.n_ff)
        deviations = self.config.sparsity[l.index]
        if deviations > -math.inf:
            gate = gate + make("sum", gate) * (-1.0 / l.n_ff)
            gate = gate + altup.length(gate) * (-deviations / math.sqrt(l.n_ff))
            gate = make("act", gate, kind="relu")
        return linear(make("act", gate, kind=self.act) * up, l.ffn_down, self.config.n_embd)
