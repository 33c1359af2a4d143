"""T5 and Flan-T5: a text is encoded, and the decoder answers it."""

from __future__ import annotations

import dataclasses

from puna.errors import ModelError
from puna.graph import Node, make
from puna.graph.parts import MEMORY
from puna.models.blocks import heads, linear, norm
from puna.models.config import ModelConfig
from puna.models.t5encoder import T5Encoder, stored
from puna.models.weights import Layer

__all__ = ["T5"]

LAYERS = "decoder_block_count"


class T5(T5Encoder):
    """Encoder-decoder (Raffel et al. 2020, arXiv:1910.10683).

    A sequence is the text and then the answer. No layer's keys are needed beside another's of the same number: the
    encoder's until its results are there, theirs at positions of the text, the decoder's at those of the answer. So
    they share a cache.
    """

    names = ("t5",)
    causal = True
    has_head = True
    reads = (*T5Encoder.reads, LAYERS, "decoder_start_token_id")

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        config = super().configure(config)
        more = max(0, config.count(LAYERS, config.n_layer) - config.n_layer)  # layers beyond the encoder's
        fields = {name: getattr(config, name) for name in ("n_head", "n_head_kv", "n_ff")}
        longer = {name: values + values[-1:] * more for name, values in fields.items()}
        return dataclasses.replace(config, **longer)

    def layers(self, x: Node) -> Node:
        memory = norm(self.encode(x, "encoder"), getattr(self.weights, "enc.output_norm"))
        x = make(
            "embed", self.weights.token_embd.weight(None, self.config.n_embd), make("tokens", part="decoder")
        )
        for index in range(self.config.count(LAYERS, self.config.n_layer)):
            l = Layer(self.weights, self.config, index, prefix="dec.blk")
            x = x + self.to_itself(norm(x, l.attn_norm), l, "decoder", causal=True)
            x = x + self.to_memory(norm(x, l.cross_attn_norm), memory, l)
            x = x + self.feed_forward(norm(x, l.ffn_norm), l)
        return x

    def to_memory(self, x: Node, memory: Node, l: Layer) -> Node:
        """Attention of x [T, width] to the encoder's results, of an earlier step: [T, width]."""
        c = self.config
        l.cross_attn_rel_b.ignore()  # old files hold them, and nothing has ever read them
        q, k, v = (
            heads(linear(y, p, n * size), n, size)
            for y, p, n, size in (
                (x, l.cross_attn_q, l.n_head, c.head_k),
                (memory, l.cross_attn_k, l.n_head_kv, c.head_k),
                (memory, l.cross_attn_v, l.n_head_kv, c.head_v),
            )
        )
        return self.attend(q, stored(k, v, l, MEMORY), l.cross_attn_o, causal=False)

    def final_norm(self, x: Node) -> Node:
        return norm(x, getattr(self.weights, "dec.output_norm"))

    def head(self, x: Node) -> Node:
        """The logits. Where the embedding is the head, too, the rows that it gets are scaled down."""
        if (self.config.start or 0) >= self.weights.token_embd.rows > 0:
            raise self.config.error("decoder_start_token_id", "no token has this number")
        logits = super().head(x)
        return logits if self.weights.output else logits * self.config.n_embd**-0.5

    def embedding(self, x: Node) -> Node:
        raise ModelError(
            "an encoder-decoder gives no embeddings", where=self.weights.path, fix="convert its encoder alone"
        )
