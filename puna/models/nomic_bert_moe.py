"""Nomic's BERT with experts in each second layer: rotation, feed-forward blocks without a gate."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models.blocks import linear, mlp
from puna.models.encoder import Encoder
from puna.models.experts import mixture, route, routed
from puna.models.weights import Layer

__all__ = ["NomicBertMoE"]


class NomicBertMoE(Encoder):
    """Post-norm encoder (Nussbaum & Duderstadt 2025, arXiv:2502.07972)."""

    names = ("nomic-bert-moe",)
    reads = ("moe_every_n_layers",)
    normed = False

    def feed_forward(self, x: Node, l: Layer) -> Node:
        if not l.ffn_gate_inp:
            return mlp(x, l, self.act)
        scores = linear(x, l.ffn_gate_inp, mixture(l).count)
        ids, weights = route(scores, l, self.gating, self.normed)
        return routed(x, ids, weights, l, lambda up: make("act", up, kind=self.act), reading=("up",))
