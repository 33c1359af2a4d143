"""Puna: a local LLM engine in Python that loads GGUF models, with nothing to compile.

model = puna.load("smollm2:135m")
print(model.generate("The capital of France is", temp=0))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from puna.errors import PunaError

if TYPE_CHECKING:
    from puna.engine import Model, load, load_tokenizer
    from puna.models.registry import register_architecture

__all__ = ["Model", "PunaError", "__version__", "load", "load_tokenizer", "register_architecture"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What is heavy is imported when it is first asked for, so that `import puna` costs nothing."""
    if name in __all__:
        home = "puna.models.registry" if name == "register_architecture" else "puna.engine"
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'puna' has no attribute {name!r}")
