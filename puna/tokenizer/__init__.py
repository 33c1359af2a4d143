"""Text to ids and back, from GGUF metadata; streaming decode; chat templates."""

from __future__ import annotations

from puna.tokenizer.chat import ChatTemplate, builtin_template, find_template, render, render_for
from puna.tokenizer.stream import StreamDecoder
from puna.tokenizer.tokenizer import Tokenizer, load

__all__ = [
    "ChatTemplate",
    "StreamDecoder",
    "Tokenizer",
    "builtin_template",
    "find_template",
    "load",
    "render",
    "render_for",
]
