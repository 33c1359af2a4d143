"""Llama whose output is never tied: InternLM 2 and 3, XVERSE."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["InternLM2"]


class InternLM2(Decoder):
    """Llama without its factors on frequencies."""

    names = "internlm2", "xverse"
    rope_layout = "interleaved"
    requires = ("output",)
