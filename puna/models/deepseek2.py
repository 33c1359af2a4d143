"""DeepSeek 2 to 3.1, Kimi K2, GLM 4.7 Flash, Mistral Large 3: latent attention, experts chosen from groups."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from puna.graph import Node
from puna.graph.rope import temperature
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.latent import KEYS, latent_attention, latent_sizes
from puna.models.weights import Layer

__all__ = ["DeepSeek2"]


class DeepSeek2(Decoder):
    """Pre-norm decoder whose first layers are dense; its experts' shares are a softmax where the file does not tell."""

    names: ClassVar[tuple[str, ...]] = ("deepseek2",)
    rope_layout = "interleaved"
    normed = False
    reads: ClassVar[tuple[str, ...]] = KEYS

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c, stretch = config, config.rope_stretch
        yarn = c.yarn
        if yarn:
            weight = yarn.log_multiplier * 10  # files hold a tenth of it
            yarn = dataclasses.replace(yarn, log_multiplier=cls.carried(weight))
            stretch *= yarn.magnitude(c.rope_factor) * temperature(c.rope_factor, weight)
        return dataclasses.replace(c, yarn=yarn, scale=stretch**2 / math.sqrt(latent_sizes(c).key))

    @classmethod
    def carried(cls, weight: float) -> float:
        """Weight of the part of YaRN's temperature that rotations leave out, where scores have one of `weight`."""
        return 1.0 if weight else 0.0

    def attention(self, x: Node, l: Layer) -> Node:
        return latent_attention(x, l, latent_sizes(self.config), self.rope(l))
