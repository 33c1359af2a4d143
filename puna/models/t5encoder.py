"""T5's encoder alone: texts as vectors, for pictures made of texts, and Sentence-T5."""

from __future__ import annotations

from typing import ClassVar, cast

from puna.graph import Node, make
from puna.models.blocks import feed_forward, linear, mlp, norm, project
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer, Parameter

__all__ = ["T5Encoder"]

BUCKETS = "attention.relative_buckets_count"
EPSILON = "attention.layer_norm_epsilon"  # the epsilon again
FEWEST, MOST = 4, 255  # buckets that distances up to 128 can be told apart by


class T5Encoder(Decoder):
    """Pre-norm encoder that knows positions as distances (Raffel et al. 2020, arXiv:1910.10683).

    Scores are not scaled. The first layer's biases serve all that have none of their own.
    """

    names = ("t5encoder",)
    causal = False
    has_head = False
    reads: ClassVar[tuple[str, ...]] = (BUCKETS, EPSILON)

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        if config.causal != cls.causal:
            raise config.error("attention.causal", f"{config.causal} is impossible for this architecture")
        return config

    def layers(self, x: Node) -> Node:
        return self.encode(x)

    def encode(self, x: Node, part: str | None = None) -> Node:
        """The encoder's layers: x [T, width] -> [T, width]."""
        for index in range(self.config.n_layer):
            l = Layer(self.weights, self.config, index, prefix="enc.blk")
            x = x + self.to_itself(norm(x, l.attn_norm), l, part, causal=False)
            x = x + self.feed_forward(norm(x, l.ffn_norm), l)
        return x

    def to_itself(self, x: Node, l: Layer, part: str | None, *, causal: bool) -> Node:
        """Self-attention of x [T, width], with biases by distance: [T, width]."""
        q, k, v = project(x, l)
        count = self.config.count(BUCKETS, 32, least=FEWEST, most=MOST)
        first = Layer(self.weights, self.config, 0, prefix=l.prefix)
        biases = (l.attn_rel_b or first.attn_rel_b).weight(count, l.n_head)
        return self.attend(q, stored(k, v, l, part), l.attn_o, biases, causal=causal)

    def attend(self, q: Node, kv: Node, out: Parameter, *biases: Node, causal: bool) -> Node:
        """Attend with q [T, heads, size]: [T, width]."""
        how = {
            "scale": 1.0,
            "window": 0,
            "softcap": 0.0,
            "alibi": 0.0,
            **({} if causal else {"causal": False}),
        }
        y = make("attend", q, kv, *biases, **how)
        _, n, size = cast("tuple[str, int, int]", y.type.shape)
        return linear(make("reshape", y, shape=("T", n * size)), out, self.config.n_embd)

    def feed_forward(self, x: Node, l: Layer) -> Node:
        return feed_forward(x, l, "gelu") if l.ffn_gate else mlp(x, l, "relu")

    def final_norm(self, x: Node) -> Node:
        return norm(x, getattr(self.weights, "enc.output_norm"))


def stored(k: Node, v: Node, l: Layer, part: str | None) -> Node:
    """Keys and values in the layer's cache."""
    return make("kv_store", k, v, layer=l.slot, **({"part": part} if part else {}))
