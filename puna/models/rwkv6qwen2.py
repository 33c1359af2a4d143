"""QRWKV: Qwen 2 with RWKV 6's mixing over time in the place of attention, as gated linear attention."""

from __future__ import annotations

from puna.graph import Node
from puna.models.decoder import Decoder
from puna.models.weights import Layer
from puna.models.wkv import time_mix6

__all__ = ["RWKV6Qwen2"]


class RWKV6Qwen2(Decoder):
    """Qwen 2's layer with this in place of attention."""

    names = ("rwkv6qwen2",)
    reads = ("time_decay_extra_dim", "time_mix_extra_dim", "token_shift_count", "wkv.head_size")

    def attention(self, x: Node, l: Layer) -> Node:
        return time_mix6(x, l, linear_attention=True)
