"""Backends, found by name: one folder each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from puna.backends.base import Backend, Description, Progress
from puna.errors import BackendError

__all__ = ["NAMES", "Backend", "Description", "Progress", "create"]

# What a user may write -> the folder. "auto" takes the first.
NAMES: Mapping[str, str] = {"reference": "reference", "blas": "reference"}


def create(name: str, threads: int | None = None) -> Backend[Any, Any]:
    """The backend called `name`, or the best there is for "auto".

    Raises BackendError for a name that does not exist.
    """
    if name == "auto":
        name = next(iter(NAMES))
    if name not in NAMES:
        raise BackendError(f"no backend is called {name!r}", fix=f"choose auto, {', '.join(NAMES)}")
    backend = import_module(f"puna.backends.{NAMES[name]}").create(threads)
    assert isinstance(backend, Backend)
    return backend
