"""Nanbeige: Llama whose stack of layers may run several times for a token."""

from __future__ import annotations

from puna.graph import Node
from puna.models.config import MOST_LAYERS
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Nanbeige"]


class Nanbeige(Decoder):
    """Pre-norm decoder. Each run has keys and values of its own, and the final norm between runs."""

    names = ("nanbeige",)
    rope_layout = "interleaved"
    reads = "num_loops", "skip_loop_final_norm"

    def layers(self, x: Node) -> Node:
        c = self.config
        runs = c.count("num_loops", most=MOST_LAYERS // c.n_layer)
        for run in range(runs):
            for index in range(c.n_layer):
                x = self.layer(x, Layer(self.weights, c, index, slot=run * c.n_layer + index))
            if run + 1 < runs and not c.own.get("skip_loop_final_norm"):
                x = self.final_norm(x)
        return x
