"""Puna: a local LLM engine in Python that loads GGUF models, with nothing to compile."""

from __future__ import annotations

from puna.errors import PunaError

__all__ = ["PunaError", "__version__"]

__version__ = "0.1.0"
