"""RWKV 6: mixing over time and over channels, nothing of it attention."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.decoder import Decoder
from puna.models.weights import NORMS, Layer
from puna.models.wkv import channel_mix, time_mix6

__all__ = ["RWKV6"]


class RWKV6(Decoder):
    """Pre-norm decoder; its files halve the stream after each few layers, as they were made for half floats."""

    names = ("rwkv6",)
    norm_kind = "layer"
    reads = (
        "rescale_every_n_layers",
        "time_decay_extra_dim",
        "time_mix_extra_dim",
        "token_shift_count",
        "wkv.head_size",
    )
    requires = NORMS

    def embed(self, x: Node) -> Node:
        return norm(x, self.weights.token_embd_norm)

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + time_mix6(norm(x, l.attn_norm), l)
        x = x + channel_mix(norm(x, l.attn_norm_2), l)
        each = self.config.count("rescale_every_n_layers", 0, least=0)
        return x * 0.5 if each and l.index % each == each - 1 else x
