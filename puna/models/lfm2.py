"""LFM 2: short convolutions between two gates in most layers, attention in the others."""

from __future__ import annotations

from puna.graph import Node
from puna.models.blocks import attention, linear, norm, split
from puna.models.decoder import Decoder
from puna.models.recurrent import short_conv, taps
from puna.models.weights import Layer

__all__ = ["LFM2"]


class LFM2(Decoder):
    """Pre-norm decoder with norms on q and k; its last norm is stored as one of the embedding."""

    names = ("lfm2", "lfm2moe")
    requires = ("exp_probs_b.bias",)
    reads = ("attention.sliding_window", "attention.sliding_window_pattern", "shortconv.l_cache")

    def attention(self, x: Node, l: Layer) -> Node:
        into, kernel, out = (getattr(l, f"shortconv.{part}") for part in ("in_proj", "conv", "out_proj"))
        if not into:
            return attention(x, l, self.rope(l), qk_norm=True)
        width = self.config.n_embd
        b, c, x = split(linear(x, into, 3 * width), (width, width, width))
        return linear(c * short_conv(b * x, kernel, taps(self.config, "shortconv.l_cache")), out, width)

    def final_norm(self, x: Node) -> Node:
        return norm(x, self.weights.token_embd_norm or self.weights.output_norm)
