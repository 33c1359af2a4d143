"""The text half of PaddleOCR-VL: ERNIE 4.5 with pairs of values rotated by sections."""

from __future__ import annotations

from puna.models.decoder import Decoder

__all__ = ["PaddleOCR"]


class PaddleOCR(Decoder):
    """Pre-norm decoder. Sections tell image positions apart, not text's."""

    names = ("paddleocr",)
