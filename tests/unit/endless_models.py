"""A model that says the alphabet, over and over: what it writes is known."""

from __future__ import annotations

from pathlib import Path

from tiny_model import ALPHABET, write_tiny

import puna

__all__ = ["letters", "load_endless"]


def load_endless(folder: Path) -> puna.Model:
    """With a context of four pages."""
    path = write_tiny(folder / "endless.gguf", follow={**ALPHABET, "z": "a"})
    return puna.load(path, backend="reference", n_ctx=256)


def letters(count: int, after: str = "a") -> str:
    """What it writes after a letter."""
    start = ord(after) - ord("a") + 1
    return "".join(chr(ord("a") + (start + n) % 26) for n in range(count))
