"""From a file's general.architecture to the class that builds its graph: one of puna/models, or a user's own."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import TypeVar, overload

import puna.models
from puna.errors import ModelError
from puna.gguf import GGUFFile
from puna.graph import Graph, Node, SpecError, check
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.outside import blamed, outside, taken, usable
from puna.models.pooling import chosen
from puna.models.weights import Weights

__all__ = ["architectures", "build", "find", "register_architecture"]

Own = TypeVar("Own", bound=type[Decoder])

# Architectures in a file that bears another's name, and that name.
SHARED: Mapping[str, str] = {
    "bailingmoe2": "dots1",
    "ernie4_5-moe": "ernie4_5",
    "exaone": "qwen2",
    "granitemoe": "granite",
    "hunyuan_vl": "hunyuan_dense",
    "lfm2moe": "lfm2",
    "mistral3": "llama",
    "nemotron_h_moe": "nemotron_h",
    "paddleocr": "qwen2",
    "phi3": "qwen2",
    "qwen35moe": "qwen35",
    "qwen3moe": "qwen3",
    "qwen3tts": "qwen3",
    "qwen3vl": "qwen3",
    "qwen3vlmoe": "qwen3",
    "starcoder": "gpt2",
    "xverse": "internlm2",
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
    config = ModelConfig.read(
        file.metadata,
        norm=architecture.norm_kind,
        causal=architecture.causal,
        reads=architecture.reads,
        context=context,
    )
    try:
        with blamed(architecture):
            config = architecture.configure(config)
            pooling = chosen(pooling, config.pooling, architecture.has_head)
            config = dataclasses.replace(config, pooling=pooling)
            ignored = [name for name in architecture.ignores if name != "cls" or pooling != "rank"]
            graph = architecture(
                config, Weights(file.tensors, path, config, ignored, architecture.requires)
            ).build()
            check(graph)
    except SpecError as error:
        raise ModelError(f"the hyper-parameters do not fit together: {error}", where=path) from error
    if not config.causal and any(map(looks_back, graph.nodes)):
        raise config.error("attention.causal", "this architecture looks back, and cannot look ahead")
    return graph, config


def looks_back(node: Node) -> bool:
    """Whether an operation has no meaning but from one token to the next."""
    return "state" in node.attrs or node.op in {"index", "index_blocks"} or bool(node.attrs.get("chunked"))


def find(architecture: str, path: str) -> type[Decoder]:
    """The class that serves an architecture, registered or of Puna's own, of which only its file is imported.

    Raises ModelError with the nearest names when there is none.
    """
    own = outside().classes
    if cls := own.get(architecture) or built_in(architecture):
        return cls
    known = {**own, **architectures()}
    near = difflib.get_close_matches(architecture, known, n=3)
    names = f"nearest: {', '.join(near)}" if near else f"none of the {len(known)} known is near"
    names += f"; registered: {', '.join(own)}" if own else ""
    raise ModelError(
        f"architecture '{architecture}' is not supported ({names})",
        where=path,
        fix="add it, as one file that --arch-file names: docs/add-a-model.md",
    )


def built_in(architecture: str) -> type[Decoder] | None:
    """Puna's own class for an architecture."""
    module = f"puna.models.{SHARED.get(architecture, architecture).replace('-', '_')}"
    return classes(module).get(architecture) if module in modules() else None


@overload
def register_architecture(cls: Own, /, *, replace: bool = False) -> Own: ...
@overload
def register_architecture(*, replace: bool = False) -> Callable[[Own], Own]: ...


def register_architecture(cls: Own | None = None, /, *, replace: bool = False) -> Own | Callable[[Own], Own]:
    """Let a Decoder of yours serve the GGUF architectures of its `names`, for all models loaded after in this process.

    The class itself, so that it serves as a decorator, with or without parentheses.
    replace: take the names from whatever class has them.
    Raises RequestError for what is no Decoder, for names that cannot be, and for those that another class has.
    """
    if cls is None:
        return functools.partial(register_architecture, replace=replace)
    found = usable(cls)
    for name in found.names:
        own = built_in(name)
        if own not in (None, found) and not replace:
            raise taken(name, own)
    outside().add(found, replace=replace)
    return cls


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
