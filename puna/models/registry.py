"""From a file's general.architecture to the class that builds its graph."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping

import puna.models
from puna.errors import ModelError
from puna.gguf import GGUFFile
from puna.graph import Graph, Node, SpecError, check
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.pooling import chosen
from puna.models.weights import Weights

__all__ = ["architectures", "build", "find"]

# Architectures in a file that bears another's name, and that name.
SHARED: Mapping[str, str] = {
    "qwen3vlmoe": "qwen3moe",
    "hunyuan_vl": "hunyuan_dense",
    "lfm2moe": "lfm2",
    "mistral3": "llama",
    "nemotron_h_moe": "nemotron_h",
    "qwen3tts": "qwen3",
    "qwen3vl": "qwen3",
    "qwen35moe": "qwen35",
    "starcoder": "gpt2",
}


def build(
    file: GGUFFile, context: Callable[[int], int] = int, pooling: str | None = None
) -> tuple[Graph, ModelConfig]:
    """The graph of a file's model. Raises ModelError for what Puna cannot run.

    context: from the positions that a model was trained on to those that a sequence may hold; some models are
    others for a longer context.  pooling: as `puna.models.pooling.chosen` takes it.
    """
    path = str(file.path)
    architecture = find(file.metadata.string("general.architecture"), path)
    config = architecture.configure(
        ModelConfig.read(
            file.metadata,
            norm=architecture.norm_kind,
            causal=architecture.causal,
            reads=architecture.reads,
            context=context,
        )
    )
    config = dataclasses.replace(config, pooling=chosen(pooling, config.pooling, architecture.has_head))
    ignored = [name for name in architecture.ignores if name != "cls" or config.pooling != "rank"]
    weights = Weights(file.tensors, path, config, ignored)
    try:
        graph = architecture(config, weights).build()
        check(graph)
    except SpecError as error:
        raise ModelError(f"the hyper-parameters do not fit together: {error}", where=path) from error
    if not config.causal and any(map(looks_back, graph.nodes)):
        raise config.error("attention.causal", "this architecture looks back, and cannot look ahead")
    return graph, config


def looks_back(node: Node) -> bool:
    """Whether an operation has no meaning but from one token to the next."""
    return "state" in node.attrs or node.op == "index" or bool(node.attrs.get("chunked"))


def find(architecture: str, path: str) -> type[Decoder]:
    """The class that serves an architecture; only its own file is imported.

    Raises ModelError with the nearest names when there is none.
    """
    module = f"puna.models.{SHARED.get(architecture, architecture).replace('-', '_')}"
    if module in modules() and (cls := classes(module).get(architecture)):
        return cls
    known = architectures()
    near = difflib.get_close_matches(architecture, known, n=3)
    names = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(sorted(known))}"
    raise ModelError(
        f"architecture '{architecture}' is not supported ({names})",
        where=path,
        fix="add it as one file: docs/add-a-model.md",
    )


def modules() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(puna.models.__path__, "puna.models.")]


def classes(module: str) -> Mapping[str, type[Decoder]]:
    """The Decoder subclasses of a module by the names they serve."""
    return {
        name: cls
        for _, cls in inspect.getmembers(importlib.import_module(module), inspect.isclass)
        if issubclass(cls, Decoder) and cls.__module__ == module
        for name in cls.names
    }


@functools.cache
def architectures() -> Mapping[str, type[Decoder]]:
    """Every architecture name and its class: the Decoder subclasses of the files in puna/models."""
    return {name: cls for module in modules() for name, cls in classes(module).items()}
