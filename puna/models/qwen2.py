"""Llama with the other order of rotated pairs: Qwen 2 and 2.5, EXAONE 3, Phi 3 to 4, the text half of PaddleOCR-VL."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["Qwen2"]


class Qwen2(Decoder):
    """Biases on q, k and v, one matrix for these, or for gate and up, are found in the file.

    The sliding window that Phi's files name is left out: they were trained to see all. Sections of rotated pairs tell
    image positions apart, not text's.
    """

    names = "qwen2", "exaone", "paddleocr", "phi3"
