"""GGUF files: read, checked and written; typed metadata; models in several files. No arithmetic."""

from __future__ import annotations

from puna.gguf.metadata import Metadata
from puna.gguf.reader import GGUFFile
from puna.gguf.tensors import TensorInfo
from puna.gguf.values import Value, ValueType
from puna.gguf.writer import write

__all__ = ["GGUFFile", "Metadata", "TensorInfo", "Value", "ValueType", "write"]
