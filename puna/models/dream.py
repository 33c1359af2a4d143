"""Dream: Qwen 2 both ways, trained to fill in masked tokens."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Dream"]


class Dream(Decoder):
    """Text diffusion (Ye et al. 2025, arXiv:2508.15487): logits of every token by all the others."""

    names = ("dream",)
    causal = False
    ignores = "cls", "output.bias"
