"""LLaDA: Llama both ways, trained to fill in masked tokens."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["LLaDA"]


class LLaDA(Decoder):
    """Text diffusion (Nie et al. 2025, arXiv:2502.09992): logits of every token by all the others."""

    names = ("llada",)
    rope_layout = "interleaved"
    causal = False
    ignores = "cls", "attn_output.bias", "ffn_down.bias", "ffn_gate.bias", "ffn_up.bias", "rope_freqs"
