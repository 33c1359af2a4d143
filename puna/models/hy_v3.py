"""Hunyuan 3: sigmoid routing with a bias for the choice, a shared expert, q and k normed a head."""

from __future__ import annotations

from puna.graph import Node
from puna.models.experts import leave_out_dense
from puna.models.qwen3 import Qwen3
from puna.models.weights import Layer

__all__ = ["HyV3"]


class HyV3(Qwen3):
    """Pre-norm decoder whose first layers are dense."""

    names = ("hy_v3",)
    gating = "sigmoid"
    normed = False

    def feed_forward(self, x: Node, l: Layer) -> Node:
        leave_out_dense(l)
        return super().feed_forward(x, l)
