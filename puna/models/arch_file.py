"""A user's own Python file with an architecture in it: run, and what it defines registered."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import CodeType, ModuleType

from puna.errors import RequestError
from puna.models.decoder import Decoder
from puna.models.outside import line_in, outside
from puna.models.registry import register_architecture

__all__ = ["run_file"]


def run_file(path: Path) -> tuple[str, ...]:
    """Run a Python file, and register the Decoder subclasses in it that have names and are not registered yet.

    The names of its architectures. Raises RequestError, with the line of the file, for one that cannot be read or
    does not end, for a class that cannot be registered, and for no class at all.
    """
    before = outside().classes
    module = ModuleType(f"arch_file:{path.resolve()}")
    module.__file__ = str(path)
    code = compiled(path)
    sys.modules[module.__name__] = module  # where dataclasses, and `inspect`, look for what a file defines
    try:
        exec(code, vars(module))
        for cls in defined(module):
            register_architecture(cls)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise failed(path, error) from error
    names = tuple(name for name, cls in outside().classes.items() if before.get(name) is not cls)
    if not names:
        what = "it defines no architecture"
        raise RequestError(what, where=str(path), fix="derive a class from puna.models.Decoder, with names")
    return names


def compiled(path: Path) -> CodeType:
    """The code of a file. Raises RequestError."""
    try:
        return compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise RequestError(
            f"cannot be read: {error.strerror}", where=str(path), fix="check --arch-file"
        ) from None
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise RequestError(f"{type(error).__name__}: {error.msg}", where=f"{path}{line}") from None
    except ValueError as error:  # zero bytes
        raise RequestError(f"is no Python file: {error}", where=str(path)) from None


def defined(module: ModuleType) -> list[type[Decoder]]:
    """The Decoder subclasses of a file, in its order, that name architectures and are not registered yet."""
    known = outside().classes.values()
    found = [member for member in vars(module).values() if inspect.isclass(member)]
    return [
        cls
        for cls in dict.fromkeys(found)
        if issubclass(cls, Decoder)
        and cls.__module__ == module.__name__
        and "names" in vars(cls)
        and cls not in known
    ]


def failed(path: Path, error: BaseException) -> RequestError:
    """What stopped a file, with its line."""
    where = line_in(error, frozenset({str(path)})) or str(path)
    if isinstance(error, RequestError) and error.where == "register_architecture":
        return RequestError(error.what, where=where, fix=error.fix)
    reason = " ".join(str(error).split())
    return RequestError(f"{type(error).__name__}: {reason}" if reason else type(error).__name__, where=where)
