"""InternLM 2 and 3: Llama."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["InternLM2"]


class InternLM2(Decoder):
    """Pre-norm decoder."""

    names = ("internlm2",)
    rope_layout = "interleaved"
