"""Backends, found by name: one folder each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from puna.backends.base import USUAL, Backend, Description, Storage
from puna.errors import BackendError
from puna.graph import Graph
from puna.plan import FREE, lower

__all__ = ["NAMES", "USUAL", "Backend", "Description", "Storage", "choose", "create"]

# What a user may write -> the folder. "auto" takes the first that can run the model.
NAMES: Mapping[str, str] = {"cpu": "cpu", "reference": "reference", "blas": "reference"}


def create(
    name: str, threads: int | None = None, repack: bool = True, storage: Storage = USUAL
) -> Backend[Any, Any]:
    """The backend called `name`. Raises BackendError for a name that does not exist, or a backend that cannot start.

    repack: weights may be brought into another form in memory; without, they are read from the file as they are.
    """
    if name not in NAMES:
        raise BackendError(f"no backend is called {name!r}", fix=f"choose auto, {', '.join(NAMES)}")
    try:
        backend = import_module(f"puna.backends.{NAMES[name]}").create(threads, repack, storage)
    except ImportError as error:
        raise BackendError(
            f"the {name} backend cannot start: {error}", fix="install what is missing"
        ) from error
    assert isinstance(backend, Backend)
    return backend


def choose(
    name: str, threads: int | None, repack: bool, graph: Graph, storage: Storage = USUAL
) -> tuple[Backend[Any, Any], Description, Graph]:
    """A backend for a model's graph, what it is, and the graph lowered for it.

    "auto" tries the backends in order, and its description's notes say why an earlier one was passed over.
    Raises BackendError where the backend cannot run the graph.
    """
    notes: list[str] = []
    for candidate in dict.fromkeys(NAMES.values()) if name == "auto" else (name,):
        try:
            backend = create(candidate, threads, repack, storage)
            about = backend.describe()
            lowered = lower(graph, about.ops)
            missing = sorted({node.op for node in lowered.nodes} - about.ops - FREE)
            if missing:
                raise BackendError(f"the {candidate} backend has no kernel for {', '.join(missing)}")
        except BackendError as error:
            notes.append(str(error))
            continue
        passed = tuple(f"{note}: using the slower {candidate} backend" for note in notes)
        return backend, dataclasses.replace(about, notes=(*passed, *about.notes)), lowered
    raise BackendError("; ".join(notes))
