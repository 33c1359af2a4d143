"""Qwen 3.5: Qwen 3 Next with one matrix each for alpha and beta, and dense or mixed feed-forward blocks."""

from __future__ import annotations

from typing import ClassVar

from puna.graph import Node
from puna.models.blocks import linear
from puna.models.delta import gated_delta_net
from puna.models.qwen3next import Qwen3Next
from puna.models.recurrent import StateSpace
from puna.models.weights import Layer

__all__ = ["Qwen35"]


class Qwen35(Qwen3Next):
    """Pre-norm decoder. Sections of rotated pairs tell image positions apart, not text's."""

    names: ClassVar[tuple[str, ...]] = ("qwen35", "qwen35moe")
    gate: ClassVar[str] = "silu"
    requires = ("ffn_gate_inp_shexp",)

    @property
    def unit_eps(self) -> float:
        """What is added below the root of the lengths of queries and keys."""
        return 0.0

    def delta_net(self, x: Node, l: Layer, s: StateSpace) -> Node:
        """Heads of v take those of q and k in turn."""
        qkv, z = self.qkvz(x, l, s)
        alpha, beta = linear(x, l.ssm_alpha, s.rank), linear(x, l.ssm_beta, s.rank)
        return gated_delta_net(qkv, z, alpha, beta, l, s, tiled=True, gate=self.gate, eps=self.unit_eps)
