"""What all decoder-only models share: embedding, a stack of layers, the head."""

from __future__ import annotations

from typing import ClassVar

from puna.errors import ModelError
from puna.graph import Graph, Node, Rope, make
from puna.graph.rope import Layout
from puna.models.blocks import attention, feed_forward, linear, mlp, norm
from puna.models.config import ModelConfig, Norm
from puna.models.experts import experts
from puna.models.mixture import Gating
from puna.models.weights import Layer, Weights

__all__ = ["Decoder"]


class Decoder:
    """Base of an architecture. A subclass names the GGUF architectures it serves and what differs.

    names: values of general.architecture.
    norm_kind: which norm its files were trained with, and so which epsilon they give.
    causal: whether tokens see none of those after them, where its files do not tell.
    has_head: whether it gives logits; an encoder gives embeddings alone.
    act: the activation of its feed-forward blocks.  gated: whether those have a gate.
    rotates: whether queries and keys are rotated.  qk_norm: whether they are normed before, as `blocks.head_norm`.
    gating, normed: how its routers' scores become weights, as `puna.models.mixture.Mixture`, where files do not tell.
    rope_layout: how its files store the rotated pairs.
    reads: keys it reads beyond those that all do, of `puna.models.config.OPTIONAL` or its own.
    ignores: tensors that its files may hold and that have no effect on logits, as Weights takes them.
    requires: those that its files hold, though a block does without them in other models: patterns, as Weights takes.
    """

    names: ClassVar[tuple[str, ...]] = ()
    norm_kind: ClassVar[Norm] = "rms"
    causal: ClassVar[bool] = True
    has_head: ClassVar[bool] = True
    act: ClassVar[str] = "silu"
    gated: ClassVar[bool] = True
    rotates: ClassVar[bool] = True
    qk_norm: ClassVar[bool] = False
    gating: ClassVar[Gating] = "softmax"
    normed: ClassVar[bool] = True
    rope_layout: ClassVar[Layout] = "halves"
    reads: ClassVar[tuple[str, ...]] = ()
    ignores: ClassVar[tuple[str, ...]] = ("cls",)
    requires: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config, self.weights = config, weights

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        """Fill in what the files of this architecture leave out."""
        return config

    def rope(self, l: Layer) -> Rope | None:
        """How a layer's queries and keys are rotated."""
        return self.config.rope(self.rope_layout, windowed=l.windowed) if self.rotates else None

    def embed(self, x: Node) -> Node:
        """Change the embedded tokens x [T, width] before the first layer."""
        return x * self.config.embedding_scale if self.config.embedding_scale else x

    def layers(self, x: Node) -> Node:
        """All layers: x [T, width] -> [T, width]."""
        for index in range(self.config.n_layer):
            x = self.layer(x, Layer(self.weights, self.config, index))
        return x

    def layer(self, x: Node, l: Layer) -> Node:
        """One layer: x [T, width] -> [T, width]; here attention and feed-forward, each after a norm of its own."""
        x = self.add(x, self.attention(norm(x, l.attn_norm), l))
        return self.add(x, self.feed_forward(norm(x, l.ffn_norm), l))

    def attention(self, x: Node, l: Layer) -> Node:
        """What a layer's attention makes of its normed input: [T, width]."""
        return attention(x, l, self.rope(l), qk_norm=self.qk_norm)

    def feed_forward(self, x: Node, l: Layer) -> Node:
        """What a layer's feed-forward block, or its mixture of them, makes of its normed input: [T, width]."""
        if l.ffn_gate_inp or l.ffn_down_exps:
            return experts(x, l, self.act, gating=self.gating, normed=self.normed)
        return (feed_forward if self.gated else mlp)(x, l, self.act)

    def add(self, x: Node, y: Node) -> Node:
        """What a block has made, added to what went into it."""
        return x + (y * self.config.residual_scale if self.config.residual_scale else y)

    def final_norm(self, x: Node) -> Node:
        return norm(x, self.weights.output_norm)

    def head(self, x: Node) -> Node:
        """Norm and output matrix, or the embedding again where the file ties them: x [T, width] -> [R, vocabulary]."""
        w, c = self.weights, self.config
        rows = w.token_embd.rows or w.output.rows
        logits = linear(self.final_norm(make("select", x)), w.output or w.token_embd, rows)
        if c.logit_scale:
            logits = logits * c.logit_scale
        return make("softcap", logits, cap=c.final_softcap) if c.final_softcap else logits

    def embedding(self, x: Node) -> Node:
        """What a token is embedded as in its text: x [T, width] -> [R, width], or what a dense layer makes of that."""
        w = self.weights
        w.output.ignore()
        y = self.final_norm(make("select", x))
        for dense in (w.dense_2, w.dense_3):
            y = linear(y, dense, dense.rows) if dense else y
        return y

    def scores(self, x: Node) -> Node:
        """What a classifier makes of a token: x [T, width] -> [R, classes]."""
        y, dense, out = self.embedding(x), self.weights.cls, getattr(self.weights, "cls.output")
        if not dense and not out:
            raise ModelError(
                "the model has no classifier", where=self.weights.path, fix="use another pooling"
            )
        if dense:
            y = make("act", linear(y, dense, dense.rows), kind="tanh")
        return linear(y, out, out.rows) if out else y

    def build(self) -> Graph:
        """The whole model as a graph: ids -> logits f32 [R, vocabulary], embeddings or scores, as config.pooling asks.

        Raises ModelError naming the tensors that are missing, misshapen or left over.
        """
        w = self.weights
        x = make("embed", w.token_embd.weight(None, self.config.n_embd), make("tokens"))  # [T, width]
        y = {None: self.head, "rank": self.scores}.get(self.config.pooling, self.embedding)(
            self.layers(self.embed(x))
        )
        w.check()
        return Graph(y)
