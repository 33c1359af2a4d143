"""From a file's general.architecture to the class that builds its graph."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Mapping

import puna.models
from puna.errors import ModelError
from puna.gguf import GGUFFile
from puna.graph import Graph, SpecError, check
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Weights

__all__ = ["architectures", "build", "find"]


def build(file: GGUFFile) -> tuple[Graph, ModelConfig]:
    """The graph of a file's model. Raises ModelError for what Puna cannot run."""
    path = str(file.path)
    architecture = find(file.metadata.string("general.architecture"), path)
    model = architecture(ModelConfig.read(file.metadata), Weights(file.tensors, path))
    try:
        graph = model.build()
        check(graph)
    except SpecError as error:
        raise ModelError(f"the hyper-parameters do not fit together: {error}", where=path) from error
    return graph, model.config


def find(architecture: str, path: str) -> type[Decoder]:
    """The class that serves an architecture.

    Raises ModelError with the nearest names when there is none.
    """
    known = architectures()
    if architecture not in known:
        near = difflib.get_close_matches(architecture, known, n=3)
        names = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(sorted(known))}"
        raise ModelError(
            f"architecture '{architecture}' is not supported ({names})",
            where=path,
            fix="add it as one file: docs/add-a-model.md",
        )
    return known[architecture]


@functools.cache
def architectures() -> Mapping[str, type[Decoder]]:
    """Every architecture name and its class: the Decoder subclasses of the files in puna/models."""
    found: dict[str, type[Decoder]] = {}
    for module in pkgutil.iter_modules(puna.models.__path__, "puna.models."):
        for _, cls in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(cls, Decoder) and cls.__module__ == module.name:
                found.update(dict.fromkeys(cls.names, cls))
    return found
