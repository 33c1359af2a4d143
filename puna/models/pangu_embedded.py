"""openPangu Embedded: Llama with biases."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["PanguEmbedded"]


class PanguEmbedded(Decoder):
    """Llama's layer; attention's last matrix has a bias, and those of q, k and v may."""

    names = ("pangu-embedded",)
    ignores = "cls", "rope_freqs"
    requires = ("attn_output.bias",)
