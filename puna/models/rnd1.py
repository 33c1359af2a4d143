"""RND1: Qwen 3's layer with experts, both ways, trained to fill in masked tokens."""

from __future__ import annotations

from puna.models.qwen3 import Qwen3

__all__ = ["RND1"]


class RND1(Qwen3):
    """Text diffusion; the weights of the chosen experts are made to sum to 1."""

    names = ("rnd1",)
    causal = False
