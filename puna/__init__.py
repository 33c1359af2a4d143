"""Puna: a local LLM engine in Python that loads GGUF models, with nothing to compile.

model = puna.load("smollm2:135m")
print(model.generate("The capital of France is", temp=0))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from puna.errors import PunaError

if TYPE_CHECKING:
    from puna.engine import Model, load, load_tokenizer

__all__ = ["Model", "PunaError", "__version__", "load", "load_tokenizer"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The engine is imported when it is first asked for, so that `import puna` costs nothing."""
    if name in __all__:
        from puna import engine

        return getattr(engine, name)
    raise AttributeError(f"module 'puna' has no attribute {name!r}")
