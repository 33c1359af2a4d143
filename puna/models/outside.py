"""Architectures whose classes are no part of Puna: which there are, where they come from, what is wrong with them."""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, TracebackType
from typing import get_args

from puna.errors import ModelError, PunaError, RequestError
from puna.graph import SpecError
from puna.graph.rope import Layout
from puna.models.config import Norm
from puna.models.decoder import Decoder
from puna.models.mixture import Gating

__all__ = ["Outside", "blamed", "is_built_in", "line_in", "origin", "outside", "taken", "usable"]

OWN = "puna.models."
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
# What a class says in tuples of words, as True or False, and in one of a few words.
TUPLES = ("names", "reads", "ignores", "requires")
FLAGS = ("causal", "has_head", "normed")
CHOICES: Mapping[str, Sequence[str]] = {
    "norm_kind": get_args(Norm),
    "rope_layout": get_args(Layout),
    "gating": get_args(Gating),
}


class Outside:
    """Registered classes by the names they serve. The only thing that Puna keeps for the process; threads share it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.classes: Mapping[str, type[Decoder]] = {}  # replaced as a whole, so that readers need no lock

    def add(self, cls: type[Decoder], *, replace: bool) -> None:
        """Let a class serve its names. Raises RequestError where another one serves them already."""
        with self.lock:
            for name in cls.names:
                if not replace and self.classes.get(name, cls) is not cls:
                    raise taken(name, self.classes[name])
            self.classes = {**self.classes, **dict.fromkeys(cls.names, cls)}

    def notes(self, name: str) -> tuple[str, ...]:
        """What a user must see of the architecture `name`: where its class comes from, if it is no part of Puna."""
        cls = self.classes.get(name)
        return (f"architecture '{name}' is {cls.__name__} of {origin(cls)}",) if cls else ()


@functools.cache
def outside() -> Outside:
    """The classes of this process."""
    return Outside()


def taken(name: str, cls: type[Decoder]) -> RequestError:
    return RequestError(
        f"there is an architecture '{name}' already, {cls.__name__} of {origin(cls)}",
        where="register_architecture",
        fix="take another name, or write @puna.register_architecture(replace=True) over the class",
    )


def usable(cls: object) -> type[Decoder]:
    """The class, which can serve an architecture. Raises RequestError that says why it cannot."""
    where = "register_architecture"
    if not (isinstance(cls, type) and issubclass(cls, Decoder)):
        raise RequestError(
            f"{cls!r} is no subclass of Decoder", where=where, fix="derive a class from puna.models.Decoder"
        )
    for attribute in TUPLES:
        words = getattr(cls, attribute)
        if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words):
            fix = f"write {attribute} = ({words!r},)" if isinstance(words, str) else None
            raise RequestError(
                f"{cls.__name__}.{attribute} is no tuple of texts: {words!r}", where=where, fix=fix
            )
    for attribute in FLAGS:
        if not isinstance(given := getattr(cls, attribute), bool):
            what = f"{cls.__name__}.{attribute} is {given!r}"
            raise RequestError(what, where=where, fix="take True or False")
    for attribute, choices in CHOICES.items():
        if getattr(cls, attribute) not in choices:
            what = f"{cls.__name__}.{attribute} is {getattr(cls, attribute)!r}"
            raise RequestError(what, where=where, fix=f"take one of {', '.join(map(repr, choices))}")
    bad = [name for name in cls.names if not NAME.fullmatch(name)]
    if bad or not cls.names:
        what = f"{bad[0]!r} is no architecture's name" if bad else "has no names"
        fix = "write them as the file's general.architecture, such as names = ('my-arch',)"
        raise RequestError(f"{cls.__name__}: {what}", where=where, fix=fix)
    return cls


def is_built_in(cls: type) -> bool:
    return cls.__module__.startswith(OWN)


def origin(cls: type) -> str:
    """The file that a class stands in, or its module where that is no file, or one of Puna's."""
    return (
        cls.__module__
        if is_built_in(cls)
        else getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__
    )


@contextmanager
def blamed(cls: type[Decoder]) -> Iterator[None]:
    """What a class from outside does wrong, as an error that names its line; an error of Puna's own class is a bug."""
    try:
        yield
    except ModelError as error:
        if is_built_in(cls) or error.fix:
            raise
        place = line_in(error, sources(cls)) or f"{cls.__name__} of {origin(cls)}"
        raise ModelError(error.what, where=error.where, fix=f"look at {place}") from error
    except (PunaError, MemoryError):
        raise
    except Exception as error:
        if is_built_in(cls):
            raise
        kind = "" if isinstance(error, SpecError) else f"{type(error).__name__}: "
        what = f"{kind}{' '.join(str(error).split())}"
        where = line_in(error, sources(cls)) or origin(cls)
        raise ModelError(f"{cls.__name__} cannot build the model: {what}", where=where) from error


def sources(cls: type) -> frozenset[str]:
    """The files that a class's methods, and those of the bases that are no part of Puna, stand in."""
    members = [
        getattr(member, "__func__", member)
        for base in cls.__mro__
        if not is_built_in(base)
        for member in vars(base).values()
    ]
    return frozenset(member.__code__.co_filename for member in members if isinstance(member, FunctionType))


def line_in(error: BaseException, files: frozenset[str]) -> str:
    """The innermost line of some files that an error passed through, as file:line; "" where there is none."""
    found, step = "", error.__traceback__
    while isinstance(step, TracebackType):
        name = step.tb_frame.f_code.co_filename
        found = f"{Path(name)}:{step.tb_lineno}" if name in files else found
        step = step.tb_next
    return found
