"""Qwen 4, experimental: Qwen 3.5 on several residual streams, with embeddings of the last few tokens together."""

from __future__ import annotations

from dataclasses import dataclass

from puna.graph import Node, make
from puna.models import indexer, streams
from puna.models.blocks import heads, linear
from puna.models.config import ModelConfig
from puna.models.qwen3next import gated_attention
from puna.models.qwen35 import Qwen35
from puna.models.recurrent import SSM, StateSpace, flat, silu, taps
from puna.models.weights import Layer, Parameter

__all__ = ["Qwen4Exp"]

MOST = 2**31 - 1


@dataclass(frozen=True)
class Together:
    """The tables of embeddings of n tokens together.

    size: of one.  end: id before which nothing counts.  factors: of the latest token, the one before it ...
    sizes, starts: of each table.
    """

    size: int
    end: int
    factors: tuple[int, ...]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, c: ModelConfig) -> Together:
        """As a file has it. Raises ModelError where its parts do not fit together."""
        n = c.count("ple.ngram_size", 0, least=2, most=8)
        tables = (n - 1) * c.count("ple.heads_per_ngram", 0, most=64)
        names = "layer_multipliers", "head_vocab_sizes", "head_offsets"
        factors, sizes, starts = (
            c.lists.get(f"ple.{name}", ())[:k] for name, k in zip(names, (n, tables, tables), strict=True)
        )
        if (len(factors), len(sizes), len(starts)) != (n, tables, tables) or not all(sizes):
            raise c.error("ple.head_vocab_sizes", f"there are not {tables} tables for {n} tokens together")
        size = c.count("embedding_length_per_layer_input", 0, most=2**24)
        end = c.count("ple.eos_token_id", 0, least=0, most=MOST)
        return cls(size, end, factors, sizes, starts)

    @property
    def rows(self) -> int:
        """Of all tables, which lie in one."""
        return max(start + size for start, size in zip(self.starts, self.sizes, strict=True))


class Qwen4Exp(Qwen35):
    """Blocks read a gated mean of the normed streams, and write to each by a weight of its own.

    Its indexers are left out, so a context is no longer than what they would choose all of.
    """

    names = ("qwen4exp",)
    gate = "sigmoid"
    ignores = (*Qwen35.ignores, "attn_q.bias", "attn_k.bias", "attn_v.bias")
    reads = (
        *SSM,
        *indexer.KEYS,
        "attention.compress_ratios",
        "embedding_length_per_layer_input",
        "hyper_connection.count",
        "hyper_connection.low_rank",
        "ple.conv_kernel",
        "ple.eos_token_id",
        "ple.head_offsets",
        "ple.head_vocab_sizes",
        "ple.heads_per_ngram",
        "ple.layer_multipliers",
        "ple.layers",
        "ple.ngram_size",
    )

    @property
    def streams(self) -> int:
        return self.config.count("hyper_connection.count", 0, least=2, most=streams.MOST)

    @property
    def unit_eps(self) -> float:
        return self.config.norm_eps

    def embed(self, x: Node) -> Node:
        return streams.spread(x, self.streams)

    def layer(self, x: Node, l: Layer) -> Node:
        if l.ple_key:
            x = x + self.together(x, l)
        y, back = self.mixed(x, l.hc_attn_norm, l.hc_attn_down, l.hc_attn_up, l.hc_attn_inject)
        x = streams.write(x, self.attention(y, l), back)
        y, back = self.mixed(x, l.hc_ffn_norm, l.hc_ffn_down, l.hc_ffn_up, l.hc_ffn_inject)
        return streams.write(x, self.feed_forward(y, l), back)

    def mixed(
        self, x: Node, w: Parameter, down: Parameter, up: Parameter, into: Parameter
    ) -> tuple[Node, Node]:
        """What a block reads of the streams x [T, n, width], [T, width], and the weights that it writes by: [T, n]."""
        normed, n = self.normed_streams(x, w), self.streams
        whole = joined(normed)  # [T, n * width]
        y = self.gated_mean(normed, whole, down, up)
        return y, make("act", linear(whole, into, n) * (1.0 / n), kind="sigmoid") * 2.0

    def normed_streams(self, x: Node, w: Parameter) -> Node:
        y = make("normalize", x, kind="rms", eps=self.config.norm_eps)
        return y * w.weight(self.streams, self.config.n_embd)

    def gated_mean(self, normed: Node, whole: Node, down: Parameter, up: Parameter) -> Node:
        """The mean of normed streams, each value by a gate: [T, width]."""
        n, width = self.streams, self.config.n_embd
        low = linear(whole, down, self.config.count("hyper_connection.low_rank", 0, most=2**24)) * (1.0 / n)
        gate = linear(silu(low), up, n * width)
        gate = make("reshape", make("act", gate, kind="sigmoid"), shape=normed.type.shape)
        return make("weighted_sum", normed * gate) * (1.0 / n)

    def attention(self, x: Node, l: Layer) -> Node:
        if l.ssm_conv1d:
            return self.delta_net(x, l, StateSpace.of(self.config))
        indexer.all_chosen(l)
        return gated_attention(x, l, self.rope(l))

    def together(self, x: Node, l: Layer) -> Node:
        """What the last tokens' embeddings add to the streams x [T, n, width]: [T, n, width]."""
        c, n, width, t = self.config, self.streams, self.config.n_embd, Together.of(self.config)
        table = self.weights.per_layer_token_embd
        if table and table.rows < t.rows:
            raise c.error("ple.head_offsets", f"tables of {t.rows} rows, and the file has {table.rows}")
        ids = make(
            "ngrams",
            make("tokens"),
            end=t.end,
            factors=t.factors,
            sizes=t.sizes,
            starts=t.starts,
            state=l.ple_key.name,
        )
        found = flat(make("embed", table.weight(None, t.size), ids))  # [T, tables * size]
        key = self.normed_streams(heads(linear(found, l.ple_key, n * width), n, width), l.ple_norm_key)
        alike = make("sum", key * self.normed_streams(x, l.ple_norm_query)) * width**-0.5  # [T, n, 1]
        gate = make("act", make("act", alike, kind="signed_root"), kind="sigmoid")
        value = streams.spread(linear(found, l.ple_value, width), n) * gate
        w = l.ple_conv1d.weight(n * width, taps(c, "ple.conv_kernel"))
        y = flat(self.normed_streams(value, l.ple_norm_conv))
        y = make("conv", y, w, apart=len(t.factors), state=l.ple_conv1d.name)
        return value + heads(silu(y), n, width)

    def final_norm(self, x: Node) -> Node:
        w = self.weights
        normed = self.normed_streams(x, w.output_hc_norm)
        return self.gated_mean(normed, joined(normed), w.output_hc_down, w.output_hc_up)


def joined(x: Node) -> Node:
    """Streams [T, n, width] as [T, n * width]."""
    rows, n, width = x.type.shape
    return make("reshape", x, shape=(rows, n * width))  # type: ignore[operator]
