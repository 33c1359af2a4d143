"""Hugging Face folders to GGUF files: one table an architecture, everything checked before a byte is written."""

from __future__ import annotations

from puna.convert.convert import Conversion, convert, prepare
from puna.convert.output import OUTTYPES

__all__ = ["OUTTYPES", "Conversion", "convert", "prepare"]
