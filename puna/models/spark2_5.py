"""Spark 2.5: sliding windows, and a gate for each head on what attention gives."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models.blocks import attention, heads, linear
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Spark25"]


class Spark25(Decoder):
    """Pre-norm decoder; its files tell which layers are windowed."""

    names = ("spark2_5",)
    act = "gelu"
    reads = "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"

    def attention(self, x: Node, l: Layer) -> Node:
        gate = make("act", linear(x, l.attn_gate, l.n_head), kind="sigmoid")  # [T, n_head]
        return attention(x, l, self.rope(l), gate=heads(gate, l.n_head, 1))
