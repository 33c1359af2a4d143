"""OLMo 2 and 3: norms after each block alone, on q and k over all heads, in OLMo 3 sliding windows."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from puna.graph import Node
from puna.models.blocks import norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.keys import all_but_each
from puna.models.weights import Layer

__all__ = ["OLMo2"]


class OLMo2(Decoder):
    """Post-norm decoder. In three of four layers OLMo 3 has a window, and a rotation that is not stretched."""

    names: ClassVar[tuple[str, ...]] = ("olmo2",)
    qk_norm = True
    reads: ClassVar[tuple[str, ...]] = (
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "rope.freq_base_swa",
    )
    requires: ClassVar[tuple[str, ...]] = ("output",)

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        windowed = c.windowed or all_but_each(4, c.n_layer)
        return dataclasses.replace(c, windowed=windowed, rope_windowed=c.rope_windowed or c.rope_base)

    def layer(self, x: Node, l: Layer) -> Node:
        x = x + norm(self.attention(x, l), l.post_attention_norm)
        return x + norm(self.feed_forward(x, l), l.post_ffw_norm)
