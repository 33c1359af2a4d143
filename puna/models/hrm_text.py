"""HRM-Text: a low and a high stack of layers that take turns over the same tokens."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models.blocks import attention, linear, normalize
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["HRMText"]


class HRMText(Decoder):
    """Pre-norm layers without norm weights, gates on attention. Each run has keys and values of its own."""

    names = ("hrm_text",)
    rope_layout = "halves"
    reads = "embedding_scale", "hrm.layers_per_stack", "hrm.h_cycles", "hrm.l_cycles", "hrm.prefix_lm"

    def layers(self, x: Node) -> Node:
        c, low = self.config, self.weights.node("hrm.z_l_init", (self.config.n_embd,))
        deep, highs, lows = (c.count(f"hrm.{key}") for key in ("layers_per_stack", "h_cycles", "l_cycles"))
        if c.own.get("hrm.prefix_lm"):
            raise c.error("hrm.prefix_lm", "attention in both directions is not supported")
        if c.n_layer != deep * highs * (lows + 1):
            raise c.error("block_count", f"{c.n_layer} is not {deep} * {highs} * ({lows} + 1)")
        slots = iter(range(0, c.n_layer, deep))
        for _ in range(highs):
            for _ in range(lows):
                low = self.stack(x + low, 0, next(slots))
            x = self.stack(x + low, deep, next(slots))
        return x

    def stack(self, x: Node, first: int, slot: int) -> Node:
        c = self.config
        for i in range(c.count("hrm.layers_per_stack")):
            l = Layer(self.weights, c, first + i, slot=slot + i)
            y = normalize(x, c)
            gate = make("act", linear(y, l.attn_gate, l.n_head * c.head_v), kind="sigmoid")
            x = x + attention(y, l, self.rope(l), gate=gate)
            x = x + self.feed_forward(normalize(x, c), l)
        return normalize(x, c)

    def final_norm(self, x: Node) -> Node:
        return x
