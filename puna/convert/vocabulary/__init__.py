"""A folder's tokenizer as the metadata of a GGUF file."""

from __future__ import annotations

from puna.convert.vocabulary.read import Vocabulary, read

__all__ = ["Vocabulary", "read"]
