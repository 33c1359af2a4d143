"""Qwen 4, experimental: Qwen 3.5 on several residual streams, with embeddings of the last few tokens together."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from puna.graph import Node
from puna.models import indexer, ngrams, streams
from puna.models.qwen3next import gated_attention
from puna.models.qwen35 import Qwen35
from puna.models.recurrent import SSM, StateSpace
from puna.models.weights import Layer, Parameter

__all__ = ["Qwen4Exp"]


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
        *ngrams.KEYS,
        "attention.compress_ratios",
        "hyper_connection.count",
        "hyper_connection.low_rank",
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
            x = x + ngrams.together(x, l, self.streams)
        x = self.block(x, l, "attn", self.attention)
        return self.block(x, l, "ffn", self.feed_forward)

    def block(self, x: Node, l: Layer, kind: str, block: Callable[[Node, Layer], Node]) -> Node:
        parts = "norm", "down", "up", "inject"
        norm, down, up, into = (cast(Parameter, getattr(l, f"hc_{kind}_{part}")) for part in parts)
        normed = streams.normed(x, norm)
        back = streams.injected(normed, into)
        return streams.write(x, block(self.gated_mean(normed, down, up), l), back)

    def gated_mean(self, normed: Node, down: Parameter, up: Parameter) -> Node:
        rank = self.config.count("hyper_connection.low_rank", 0, most=2**24)
        return streams.gated_mean(normed, down, up, rank)

    def attention(self, x: Node, l: Layer) -> Node:
        if l.ssm_conv1d:
            return self.delta_net(x, l, StateSpace.of(self.config))
        indexer.all_chosen(l)
        return gated_attention(x, l, self.rope(l))

    def final_norm(self, x: Node) -> Node:
        w = self.weights
        return self.gated_mean(streams.normed(x, w.output_hc_norm), w.output_hc_down, w.output_hc_up)
