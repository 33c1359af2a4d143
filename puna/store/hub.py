"""GGUF files in repositories of the Hugging Face hub: `hf:owner/repo[:quant]` and `hf:owner/repo/file.gguf`.

Files lie as plain files below the folder of models, in hf/<owner>/<repo>/; a copy that the hub's own cache
already holds is used instead of a download.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from puna.errors import StoreError
from puna.progress import Progress
from puna.store.files import is_whole, need_room, writing
from puna.store.progress import growth, stage

__all__ = ["HubModel", "choose", "groups"]

# In this order where no quantisation is asked for; then the first file.
PREFERRED = ("Q4_K_M", "Q4_0", "Q8_0")
# Parts of names of GGUF files that are no models of their own.
COMPANIONS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
ID = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
FORM = re.compile(rf"({ID})/({ID})(?::([A-Za-z0-9_.-]+)|/(.+\.gguf))?", re.IGNORECASE)


@dataclass(frozen=True)
class HubModel:
    """One model of a repository. At most one of quant and file is given."""

    owner: str
    repo: str
    quant: str | None = None
    file: str | None = None

    source = "Hugging Face"

    @classmethod
    def parse(cls, name: str) -> HubModel:
        """Read a name with its `hf:`. Raises StoreError where it has another form."""
        match = FORM.fullmatch(name.removeprefix("hf:"))
        if not match or "--" in match[1] + match[2] or ".." in name or not _is_plain(match[4] or "x"):
            fix = "write hf:owner/repo, hf:owner/repo:QUANT or hf:owner/repo/file.gguf"
            raise StoreError("the name is not of the hub's form", where=name, fix=fix)
        return cls(*match.groups())

    @property
    def id(self) -> str:
        return f"{self.owner}/{self.repo}"

    @property
    def name(self) -> str:
        return f"hf:{self.id}" + (f":{self.quant}" if self.quant else f"/{self.file}" if self.file else "")

    def folder(self, models: Path) -> Path:
        return models / "hf" / self.owner / self.repo

    def find(self, models: Path) -> Path | None:
        """The model's file, or the first part of it, if all parts have been fetched."""
        folder = self.folder(models)
        chosen = choose(fetched(folder), self.quant, self.file)
        return folder / chosen[0] if chosen else None

    def fetch(self, models: Path, progress: Progress, endpoint: str | None = None) -> Path:
        """Fetch what is missing or has changed on the hub. Raises StoreError.

        endpoint: address of the hub; None is the user's own setting.
        """
        folder = self.folder(models)
        with _explained(self), _without_bars():
            revision, listed = _list(self.id, endpoint)
            chosen = self._chosen(listed)
            missing = [file for file in chosen if not _has(folder / file, listed[file])]
            wanted = sum(listed[file].size for file in missing)
            need_room(folder, wanted)
            with stage(progress, self.name, wanted) as advance:
                for file in chosen:
                    with growth(folder, listed[file].size if file in missing else 0, advance):
                        _download(self.id, file, revision, folder, endpoint)
        for file in missing:
            self._check(folder / file, listed[file], progress)
        return folder / chosen[0]

    def _chosen(self, listed: Mapping[str, Listed]) -> Sequence[str]:
        chosen = choose(listed, self.quant, self.file)
        if chosen and all(_is_plain(file) for file in chosen):
            return chosen
        if chosen:
            raise StoreError(
                f"the repository lists {chosen[0]!r}, which is no safe file name", where=self.name
            )
        whole = groups(listed)
        if not whole:
            fix = "choose a repository with GGUF files; their names often end in -GGUF"
            raise StoreError("the repository has no complete GGUF model", where=self.name, fix=fix)
        there = sorted(whole) if self.file else sorted({_label(stem) for stem in whole})
        raise StoreError(
            f"the repository has no {self.file or self.quant}",
            where=self.name,
            fix=f"use one of {', '.join(there)}",
        )

    def _check(self, path: Path, listed: Listed, progress: Progress) -> None:
        if listed.sha256 and not is_whole(path, listed.sha256, progress):
            with writing(path.parent):
                path.unlink()
            raise StoreError(f"{path.name} arrived damaged", where=self.name, fix="fetch it again")


@dataclass(frozen=True)
class Listed:
    """What the hub says of a file."""

    size: int
    sha256: str | None


def groups(files: Iterable[str]) -> dict[str, list[str]]:
    """The models among these files: name without .gguf and part number -> its files, where all are there."""
    from puna.gguf.split import part_name, split_name

    found: dict[str, list[str]] = {}
    for file in sorted(files):
        if not file.lower().endswith(".gguf") or any(
            word in file.rsplit("/")[-1].lower() for word in COMPANIONS
        ):
            continue
        split = split_name(file)
        if not split:
            found[file[: -len(".gguf")]] = [file]
        elif split[1] == 1:
            stem, _, count = split
            names = (part_name(stem, part, count) for part in range(1, count + 1))
            parts = [name for name in names if name in files]
            if len(parts) == count:
                found[stem] = parts
    return found


def choose(files: Iterable[str], quant: str | None, file: str | None) -> Sequence[str]:
    """The files of the model that is asked for, in order; none where it is not among them."""
    from puna.gguf.split import split_name

    whole = groups(tuple(files))
    if file:
        alone = [file] if file in files and not split_name(file) else []
        return next((parts for parts in whole.values() if file in parts), alone)
    for wanted in [quant] if quant else PREFERRED:
        pattern = re.compile(rf"(?:^|[-._/]){re.escape(wanted)}(?:$|[-./])", re.IGNORECASE)
        for stem, parts in whole.items():
            if pattern.search(stem):
                return parts
    return [] if quant else next(iter(whole.values()), [])


def fetched(folder: Path) -> list[str]:
    """The GGUF files below a repository's folder, as the hub names them; unfinished ones lie in .cache."""
    files = (path.relative_to(folder) for path in folder.rglob("*.gguf") if path.is_file())
    return sorted(file.as_posix() for file in files if file.parts[0] != ".cache")


def _label(stem: str) -> str:
    """The quantisation that a file's name ends with, or the name itself."""
    match = re.search(r"[-.]([A-Za-z]+\d\w*)$", stem)
    return match[1] if match else stem


def _is_plain(file: str) -> bool:
    """Whether a file name from the hub stays below its folder on every system."""
    plain = file.isprintable() and not re.search(r'[\\:*?"<>|]', file)
    return plain and all(part and part[-1] not in ". " for part in file.split("/"))


def _has(path: Path, listed: Listed) -> bool:
    return path.is_file() and path.stat().st_size == listed.size


def _list(repo_id: str, endpoint: str | None) -> tuple[str, dict[str, Listed]]:
    """The commit that a repository is at, and its files."""
    from huggingface_hub import HfApi

    info = HfApi(endpoint=endpoint).model_info(repo_id, files_metadata=True)
    files = {}
    for entry in info.siblings or ():
        lfs: Any = entry.lfs
        files[entry.rfilename] = Listed(entry.size or 0, lfs.sha256 if lfs else None)
    return info.sha or "main", files


def _download(repo_id: str, file: str, revision: str, folder: Path, endpoint: str | None) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download(repo_id, file, revision=revision, local_dir=folder, endpoint=endpoint)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Turns the hub library's own progress bars off for a while."""
    from huggingface_hub import utils

    bars: Any = utils
    if bars.are_progress_bars_disabled():
        yield
        return
    bars.disable_progress_bars()
    try:
        yield
    finally:
        bars.enable_progress_bars()


@contextmanager
def _explained(model: HubModel) -> Iterator[None]:
    """Turns whatever the hub library raises into a StoreError."""
    from huggingface_hub import errors

    gone = "check the name; for a private repository log in with `hf auth login`"
    network = "check the network, and try again"
    reasons: tuple[tuple[type[Exception], str, str], ...] = (
        (
            errors.GatedRepoError,
            "its owner gives access on request only",
            f"ask for it at https://huggingface.co/{model.id}, then log in with `hf auth login`",
        ),
        (errors.RepositoryNotFoundError, "the hub has no such repository", gone),
        (errors.OfflineModeIsEnabled, "HF_HUB_OFFLINE is set", "unset it to fetch models"),
        (errors.LocalEntryNotFoundError, "the hub cannot be reached", network),
        (errors.EntryNotFoundError, "the hub has no such file", gone),
        (errors.HfHubHTTPError, "the hub answered with an error", network),
    )
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        detail = lines[0].rstrip(".:") if lines else type(error).__name__
        fitting = ((what, fix) for kind, what, fix in reasons if isinstance(error, kind))
        what, fix = next(fitting, ("the download failed", network))
        raise StoreError(f"{what} ({detail})", where=model.name, fix=fix) from error
