"""RWKV 7: mixing over time, with values that the first layer shares with all, and over channels."""

from __future__ import annotations

from typing import ClassVar

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.config import Norm
from puna.models.decoder import Decoder
from puna.models.weights import Layer
from puna.models.wkv import channel_mix, time_mix7

__all__ = ["RWKV7"]


class RWKV7(Decoder):
    """The norm on embeddings is a layer norm, as all are; a layer has two halves."""

    names: ClassVar[tuple[str, ...]] = ("rwkv7",)
    norm_kind: ClassVar[Norm] = "layer"
    reads = (
        "attention.decay_lora_rank",
        "attention.gate_lora_rank",
        "attention.iclr_lora_rank",
        "attention.value_residual_mix_lora_rank",
        "token_shift_count",
        "wkv.head_size",
    )

    def embed(self, x: Node) -> Node:
        return norm(x, self.weights.token_embd_norm)

    def layers(self, x: Node) -> Node:
        values: Node | None = None
        for index in range(self.config.n_layer):
            l = Layer(self.weights, self.config, index)
            y, values = time_mix7(norm(x, l.attn_norm), l, values)
            x = self.channels(x + y, l)
        return x

    def channels(self, x: Node, l: Layer) -> Node:
        """The second half of a layer."""
        return x + channel_mix(norm(x, l.attn_norm_2), l)
