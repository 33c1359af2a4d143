"""MiniMax M3: sigmoid routing with a shared expert, gpt-oss's activation, q and k normed a head."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention, linear
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.experts import experts, oai
from puna.models.weights import Layer, Parameter

__all__ = ["MiniMaxM3"]

INDEXER = "q_proj", "k_proj", "q_norm", "k_norm"
MOST = 2**31 - 1


class MiniMaxM3(Decoder):
    """Pre-norm decoder whose first layers are dense, and see all; the others see the best blocks of positions."""

    names = ("minimax-m3",)
    gating = "sigmoid"
    normed = False
    reads = "attention.indexer.block_size", "attention.indexer.top_k"

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        c = config
        size, top = (c.count(f"attention.indexer.{key}", MOST, most=MOST) for key in ("block_size", "top_k"))
        if c.n_ctx > size * top:
            seen = (
                f"{top} blocks of {size} positions do not cover a context of {c.n_ctx}; use -c {size * top}"
            )
            raise c.error("attention.indexer.top_k", f"a choice among blocks is not supported: {seen}")
        return c

    def attention(self, x: Node, l: Layer) -> Node:
        for name in INDEXER:  # which blocks are best is no question where all are seen
            Parameter(l.weights, f"blk.{l.index}.indexer.{name}").ignore()
        return attention(x, l, self.rope(l), qk_norm=True)

    def feed_forward(self, x: Node, l: Layer) -> Node:
        if l.ffn_gate_inp:
            return experts(x, l, oai, gating=self.gating, normed=self.normed)
        y = oai(linear(x, l.ffn_gate, l.n_ff), linear(x, l.ffn_up, l.n_ff))
        return linear(y, l.ffn_down, self.config.n_embd)
