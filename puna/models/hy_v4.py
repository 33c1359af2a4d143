"""Hunyuan 4: hyper-connections, latent attention over chosen positions with gates and sinks, limited experts."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models import indexer, latent, streams
from puna.models.blocks import linear, norm
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.latent import latent_attention, latent_queries, latent_sizes
from puna.models.weights import Layer, Parameter, Weights

__all__ = ["HyV4"]


class HyV4(Decoder):
    """Decoder of several residual streams, whose first layers are dense."""

    names = ("hy_v4",)
    rope_layout = "interleaved"
    gating = "sigmoid"
    normed = False
    reads = (*latent.KEYS, *indexer.KEYS, *streams.KEYS, "attention.indexer.types")
    requires = "output", "attn_sinks"

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        self.chosen: Node | None = None
        self.streams, self.eps = (
            config.count("hyper_connection.count"),
            config.value("hyper_connection.epsilon", least=0.0, most=1.0),
        )

    def embed(self, x: Node) -> Node:
        return streams.spread(x, self.streams)

    def layer(self, x: Node, l: Layer) -> Node:
        weights, back = self.gates(x, l.hc_attn_fn, l.hc_attn_scale, l.hc_attn_base)
        x = streams.write(x, self.attention(norm(streams.read(x, weights), l.attn_norm), l), back)
        weights, back = self.gates(x, l.hc_ffn_fn, l.hc_ffn_scale, l.hc_ffn_base)
        return streams.write(x, self.feed_forward(norm(streams.read(x, weights), l.ffn_norm), l), back)

    def gates(self, x: Node, fn: Parameter, scale: Parameter, base: Parameter) -> tuple[Node, Node]:
        """The weights to read streams with and to write them with: [T, streams] each."""
        n, both = self.streams, streams.gates(x, fn, scale, base, 2, eps=self.config.norm_eps)
        weights, back = make("slice", both, start=0, size=n), make("slice", both, start=n, size=n)
        back = back * self.config.value("hyper_connection.magnitude")
        return make("shift", weights, by=self.eps), make("shift", back, by=self.eps)

    def attention(self, x: Node, l: Layer) -> Node:
        c, sizes, queries = self.config, latent_sizes(self.config), latent_queries(x, l)
        if "attention.indexer.top_k" in c.own and (not c.indexed or c.indexed[l.index]):
            self.chosen = indexer.indexed(x, queries, l, self.rope_layout, eps=c.norm_eps, turned_last=True)
        gate = make("act", linear(x, l.attn_gate, l.n_head * sizes.value), kind="sigmoid")
        return latent_attention(x, l, sizes, self.rope(l), queries=queries, gate=gate, chosen=self.chosen)

    def final_norm(self, x: Node) -> Node:
        return streams.last(x, self)
