"""DeepSeek 3.2: DeepSeek 3 whose layers each choose the positions that they attend to."""

from __future__ import annotations

from typing import ClassVar

from puna.graph import Node
from puna.graph.rope import Layout
from puna.models import indexer, latent
from puna.models.config import ModelConfig
from puna.models.deepseek2 import DeepSeek2
from puna.models.latent import latent_attention, latent_queries, latent_sizes
from puna.models.weights import Layer, Weights

__all__ = ["DeepSeek32"]


class DeepSeek32(DeepSeek2):
    """Pre-norm decoder. In a context of no more positions than a layer may choose, all are attended to."""

    names: ClassVar[tuple[str, ...]] = ("deepseek32",)
    index_layout: ClassVar[Layout] = "halves"
    reads = (*latent.KEYS, *indexer.KEYS, "attention.indexer.types", "attention.layer_norm_epsilon")

    @classmethod
    def carried(cls, weight: float) -> float:
        return weight

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        self.chosen: Node | None = None

    def attention(self, x: Node, l: Layer) -> Node:
        c, queries = self.config, latent_queries(x, l)
        if not c.indexed or c.indexed[l.index]:
            eps = c.value("attention.layer_norm_epsilon", 1e-6, least=0.0)
            self.chosen = indexer.indexed(x, queries, l, self.index_layout, eps=eps)
        sizes = latent_sizes(c)
        return latent_attention(x, l, sizes, self.rope(l), queries=queries, chosen=self.chosen)
