"""What all decoder-only models share: embedding, a stack of layers, the head."""

from __future__ import annotations

from typing import ClassVar

from puna.errors import ModelError
from puna.graph import Graph, Node, make
from puna.graph.rope import Layout
from puna.models import blocks
from puna.models.config import ModelConfig
from puna.models.weights import Layer, Weights

__all__ = ["Decoder"]


class Decoder:
    """Base of an architecture. A subclass names the GGUF architectures it serves and writes `layer`.

    names: values of general.architecture.
    rope_layout: how its files store the rotated pairs.
    """

    names: ClassVar[tuple[str, ...]] = ()
    rope_layout: ClassVar[Layout] = "halves"

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config, self.weights = self.configure(config), weights

    def configure(self, config: ModelConfig) -> ModelConfig:
        """Fill in what the files of this architecture leave out."""
        return config

    def embed(self, x: Node) -> Node:
        """Change the embedded tokens x [T, width] before the first layer."""
        return x

    def layer(self, x: Node, l: Layer) -> Node:
        """One layer: x [T, width] -> [T, width]."""
        raise NotImplementedError

    def build(self) -> Graph:
        """The whole model as a graph: ids -> logits f32 [R, vocabulary].

        Raises ModelError naming the tensors that are missing, misshapen or left over.
        """
        w, c = self.weights, self.config
        x = make("embed", w.token_embd.weight(None, c.n_embd), make("tokens"))  # [T, width]
        x = self.embed(x)
        for index in range(c.n_layer):
            x = self.layer(x, Layer(w, c, index))
        logits = blocks.head(x, w, c.norm_eps)
        if c.final_softcap:
            logits = make("softcap", logits, cap=c.final_softcap)
        self.refuse_unused()
        return Graph(logits)

    def refuse_unused(self) -> None:
        # cls.* rank or classify; logits have no use for them.
        unused = [name for name in self.weights.unused() if not name.startswith("cls.")]
        if unused:
            some = ", ".join(f"'{name}'" for name in unused[:4]) + (", ..." if len(unused) > 4 else "")
            raise ModelError(
                f"{len(unused)} tensors have no place in architecture '{self.config.architecture}': {some}",
                where=self.weights.path,
            )
