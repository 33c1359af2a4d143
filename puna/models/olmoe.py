"""OLMoE: q and k are normed over all heads."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["OLMoE"]


class OLMoE(Decoder):
    """Llama's layer; the experts' weights are left as the softmax over all gives them."""

    names = ("olmoe",)
    normed = False
    qk_norm = True
    requires = ("output",)
