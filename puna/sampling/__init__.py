"""Logits -> id: a chain of small functions with llama.cpp's names, defaults and order.

`Sampler` is imported when it is asked for, since it needs NumPy and the options do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from puna.sampling.params import SamplingParams
from puna.sampling.stops import StopMatcher

if TYPE_CHECKING:
    from puna.sampling.sampler import Sampler

__all__ = ["Sampler", "SamplingParams", "StopMatcher"]


def __getattr__(name: str) -> Any:
    if name == "Sampler":
        from puna.sampling.sampler import Sampler

        return Sampler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
