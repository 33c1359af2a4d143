"""ChatGLM 3, GLM-4 9B and Edge: gate and up from one matrix, rotation of half of each head."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["ChatGLM"]


class ChatGLM(Decoder):
    """Pre-norm decoder with biases on q, k and v."""

    names = ("chatglm",)
    rope_layout = "interleaved"
