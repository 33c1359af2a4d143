"""What Gemma 3n and 4 share: an input of its own for each layer, and last layers that have no keys of their own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from puna.graph import Node, Rope, make
from puna.models.blocks import (
    attend_to,
    head_norm,
    heads,
    linear,
    norm,
    normalize,
    rope_factors,
    rotate,
    split,
)
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer, Weights

__all__ = ["PerLayer"]

SIZE, SHARED = "embedding_length_per_layer_input", "attention.shared_kv_layers"


class PerLayer(Decoder):
    """Scores are not scaled, and values are normed as keys are, without weights.

    The last layers attend to what the last layer of their kind, windowed or not, has stored before them.
    """

    act = "gelu"
    reads: ClassVar[tuple[str, ...]] = (
        SIZE,
        SHARED,
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "final_logit_softcapping",
        "rope.freq_base_swa",
    )

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        self.inputs: Sequence[Node] = ()
        self.stored: dict[int, Node] = {}

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(
            config,
            rope_windowed=config.rope_windowed or 10000.0,
            scale=1.0,
            embedding_scale=math.sqrt(config.n_embd),
        )

    def layer_inputs(self, x: Node, size: int) -> list[Node]:
        """What each layer adds to itself, from the token alone and from its embedding x [T, width]: [T, size] each."""
        w, n = self.weights, self.config.n_layer
        table = w.per_layer_token_embd.weight(w.token_embd.rows, n * size)
        own = make("embed", table, make("tokens")) * math.sqrt(size)
        y = linear(x, w.per_layer_model_proj, n * size) * (1.0 / math.sqrt(self.config.n_embd))
        y = make("reshape", norm(heads(y, n, size), w.per_layer_proj_norm), shape=("T", n * size))
        return split((y + own) * math.sqrt(0.5), [size] * n)

    def layer_input(self, x: Node, l: Layer) -> Node:
        """The layer's own input, gated by what it has made, x [T, width]: [T, width]."""
        own = self.inputs[l.index]
        size = own.type.shape[1]
        assert isinstance(size, int)
        y = make("act", linear(x, l.inp_gate, size), kind=self.act) * own
        return norm(linear(y, l.proj, self.config.n_embd), l.post_norm)

    def attention(self, x: Node, l: Layer) -> Node:
        rope = self.rope(l)
        factors = None if l.windowed else rope_factors(l)
        q = heads(linear(x, l.attn_q, l.n_head * l.head_k), l.n_head, l.head_k)
        q = rotate(head_norm(q, l.attn_q_norm), rope, factors)
        return linear(attend_to(q, self.kv(x, l, rope, factors), l), l.attn_output, self.config.n_embd)

    def kv(self, x: Node, l: Layer, rope: Rope | None, factors: Node | None) -> Node:
        """The keys and values that a layer attends to; values are made as keys are where it has no matrix for them."""
        c, first = self.config, self.config.n_layer - self.config.count(SHARED, 0, least=0)
        if l.index >= first:
            for unused in (l.attn_k, l.attn_v, l.attn_k_norm):
                unused.ignore()
            alike = [i for i in range(max(0, first)) if l.windowed == bool(c.windowed and c.windowed[i])]
            if not alike:
                raise c.error(SHARED, f"there is no earlier layer whose keys layer {l.index} could share")
            return self.stored[alike[-1]]
        k = heads(linear(x, l.attn_k, l.n_head_kv * l.head_k), l.n_head_kv, l.head_k)
        v = heads(linear(x, l.attn_v, l.n_head_kv * l.head_v), l.n_head_kv, l.head_v) if l.attn_v else k
        k = rotate(head_norm(k, l.attn_k_norm), rope, factors)
        self.stored[l.index] = make("kv_store", k, normalize(v, c), layer=l.slot)
        return self.stored[l.index]
