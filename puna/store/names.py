"""What the name of a model means: a path, a name of the catalogue, or a place on the hub."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from puna.errors import StoreError
from puna.store.catalogue import catalogue
from puna.store.hub import HubModel
from puna.store.progress import Progress

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
        return self.path if self.path.is_file() else None

    def fetch(self, models: Path, progress: Progress) -> Path:
        if self.path.is_file():
            return self.path
        if self.path.is_dir():
            raise StoreError("this is a folder", where=self.name, fix="name a .gguf file in it")
        raise StoreError("there is no such file", where=self.name, fix="check the path")


def parse(name: str) -> Source:
    """The source that a name stands for. Raises StoreError for a name of no known form."""
    if not name.isprintable() or not name.strip():
        raise StoreError(f"{name!r} cannot name a model", fix=_forms(name))
    if name.startswith("hf:"):
        return HubModel.parse(name)
    path = Path(name).expanduser()
    if path.is_file() or name.lower().endswith(".gguf") or "/" in name or "\\" in name:
        return LocalFile(path)
    for model in catalogue():
        if model.name == name.lower():
            return model
    raise StoreError("there is no model of this name", where=name, fix=_forms(name))


def _forms(name: str) -> str:
    known = [model.name for model in catalogue()]
    near = difflib.get_close_matches(name.lower(), known, cutoff=0.4) or known
    return f"use {' or '.join(near)}, hf:owner/repo[:quant], or the path of a .gguf file"
