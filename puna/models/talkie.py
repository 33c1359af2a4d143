"""Talkie: norms without weights, a gain for each head, and the embeddings added again after each layer."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attend, linear, normalize, project, rotate
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Talkie"]


class Talkie(Decoder):
    """Pre-norm decoder; q and k are normed after rotation."""

    names = ("talkie",)
    reads = ("logit_scale",)
    requires = ("output",)

    def embed(self, x: Node) -> Node:
        return normalize(x, self.config)

    def layers(self, x: Node) -> Node:
        first = x
        for index in range(self.config.n_layer):
            l = Layer(self.weights, self.config, index)
            x = self.layer(x, l) + first * l.layer_output_scale.weight(1)
        return x

    def layer(self, x: Node, l: Layer) -> Node:
        c = self.config
        rope = self.rope(l)
        q, k, v = project(normalize(x, c), l)
        q = normalize(rotate(q, rope), c) * l.attn_q_norm.weight(l.n_head, 1)
        y = attend(q, normalize(rotate(k, rope), c), v, l)
        x = x + linear(y, l.attn_output, c.n_embd)
        return x + self.feed_forward(normalize(x, c), l)

    def final_norm(self, x: Node) -> Node:
        return normalize(x, self.config)
