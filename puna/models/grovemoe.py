"""GroveMoE: a second, smaller set of experts, each shared by a group of the first."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models.blocks import linear
from puna.models.experts import gated, mixture, routed
from puna.models.qwen3 import Qwen3
from puna.models.weights import Layer

__all__ = ["GroveMoE"]


class GroveMoE(Qwen3):
    """Qwen 3 whose second experts read what the first have made."""

    names = ("grovemoe",)
    reads = "expert_chunk_feed_forward_length", "expert_group_scale", "experts_per_group"

    def feed_forward(self, x: Node, l: Layer) -> Node:
        c, count = self.config, mixture(l).count
        gates = make("softmax", linear(x, l.ffn_gate_inp, count))
        ids = make("top", gates, k=mixture(l).used)
        groups, each = ids, c.count("experts_per_group")
        if each > 1:
            groups = make("group_of", ids, size=each)
        y = routed(x, ids, make("share", make("pick", gates, ids)), l, gated("silu"))
        shares = make("share", make("pick", gates, groups))
        z = routed(y, groups, shares, l, gated("silu"), kind="chexps", count=count // each)
        return y + z * c.own.get("expert_group_scale", 1.0)
