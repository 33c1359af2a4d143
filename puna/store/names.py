"""What the name of a model means: a path, a name of the catalogue, or a place on the hub."""

from __future__ import annotations

import difflib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from puna.errors import StoreError
from puna.progress import Progress
from puna.store.catalogue import catalogue
from puna.store.hub import HubModel

__all__ = ["LocalFile", "Source", "parse"]


class Source(Protocol):
    """Where a model comes from."""

    @property
    def name(self) -> str: ...

    def find(self, models: Path) -> Path | None:
        """The model's file, if it is here."""

    def fetch(self, models: Path, progress: Progress) -> Path:
        """Make sure that the model's file is here. Raises StoreError."""


@dataclass(frozen=True)
class LocalFile:
    """A file that the user names by its path."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def find(self, models: Path) -> Path | None:
        return self.path if os.path.isfile(self.path) else None  # noqa: PTH113 - Path.is_file raises

    def fetch(self, models: Path, progress: Progress) -> Path:
        self.check()
        return self.path

    def check(self) -> None:
        """Raises StoreError where the path leads to no file."""
        try:
            mode = self.path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise StoreError("there is no such file", where=self.name, fix="check the path") from None
        except OSError as error:
            what = f"cannot look at the file: {error.strerror or error}"
            raise StoreError(what, where=self.name, fix="check the path and its folders") from None
        if stat.S_ISDIR(mode):
            raise StoreError("this is a folder", where=self.name, fix="name a .gguf file in it")
        if not stat.S_ISREG(mode):
            raise StoreError("this is a device or a pipe", where=self.name, fix="give a regular file")


def parse(name: str) -> Source:
    """The source that a name stands for. Raises StoreError for a name of no known form."""
    if not name.isprintable() or not name.strip():
        raise StoreError(f"{name!r} cannot name a model", fix=_forms(name))
    if name.startswith("hf:"):
        return HubModel.parse(name)
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        raise StoreError("that user's home folder is unknown", where=name, fix="write out the path") from None
    if os.path.isfile(path) or name.lower().endswith(".gguf") or "/" in name or "\\" in name:  # noqa: PTH113
        return LocalFile(path)
    for model in catalogue():
        if model.name == name.lower():
            return model
    if os.path.exists(path):  # noqa: PTH110 - a folder, or a pipe
        return LocalFile(path)
    raise StoreError("there is no model of this name", where=name, fix=_forms(name))


def _forms(name: str) -> str:
    known = [model.name for model in catalogue()]
    near = difflib.get_close_matches(name.lower(), known, cutoff=0.4) or known
    return f"use {' or '.join(near)}, hf:owner/repo[:quant], or the path of a .gguf file"
