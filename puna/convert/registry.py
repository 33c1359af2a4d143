"""From the class that config.json names to the table that converts it."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Mapping

import puna.convert.architectures
from puna.convert.architecture import Architecture, features
from puna.convert.config import Config

__all__ = ["all_features", "architectures", "find"]


def find(config: Config) -> type[Architecture]:
    """The class for a configuration. Raises ModelError with the nearest names when there is none."""
    known = architectures()
    if not config.classes:
        what = "is missing" if config.values.get("architectures") is None else "is no list of names"
        raise config.error("architectures", what, "add the name of the model's class to config.json")
    name = config.classes[0]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        names = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(sorted(known))}"
        what = f"is {name!r}, which cannot be converted ({names})"
        raise config.error("architectures", what, "take one of these, or add it as a file of architectures/")
    return known[name]


@functools.cache
def architectures() -> Mapping[str, type[Architecture]]:
    """Every class name of transformers that can be converted: the subclasses in puna/convert/architectures."""
    found: dict[str, type[Architecture]] = {}
    for module in pkgutil.iter_modules(puna.convert.architectures.__path__, "puna.convert.architectures."):
        for _, cls in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(cls, Architecture) and cls.__module__ == module.name:
                found.update(dict.fromkeys(cls.hf, cls))
    return found


@functools.cache
def all_features() -> frozenset[str]:
    """Keys of config.json that change what some architecture computes."""
    return frozenset().union(*(features(cls) for cls in architectures().values()))
