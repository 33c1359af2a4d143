"""MiMo V2: sigmoid routing, sliding windows, attention sinks, values of another size than keys."""

from __future__ import annotations

from puna.graph import Node
from puna.models.decoder import Decoder
from puna.models.experts import leave_out_dense
from puna.models.weights import Layer

__all__ = ["MiMo2"]


class MiMo2(Decoder):
    """Pre-norm decoder; windowed layers rotate with a base of their own and may have other numbers of heads."""

    names = ("mimo2",)
    gating = "sigmoid"
    ignores = "cls", "attn_q.bias", "attn_k.bias", "attn_v.bias"
    reads = (
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.value_scale",
        "rope.freq_base_swa",
    )
    requires = ("output",)

    def attention(self, x: Node, l: Layer) -> Node:
        y = super().attention(x, l)
        scale = self.config.own.get("attention.value_scale", 0.0)
        return y * scale if scale else y

    def feed_forward(self, x: Node, l: Layer) -> Node:
        leave_out_dense(l)
        return super().feed_forward(x, l)
