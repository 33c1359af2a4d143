"""A Hugging Face folder: its JSON and text files, and the tensors of its safetensors files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from puna.convert.safetensors import SafeTensors, StoredTensor
from puna.errors import FormatError
from puna.gguf.source import open_file
from puna.units import human

__all__ = ["Checkpoint", "Folder"]

MOST = 1 << 29  # bytes of a JSON or text file; the largest tokenizers take 40 MB
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PART = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")
# What else a folder may hold its tensors in.
STRANGERS = {
    "pytorch_model*.bin": "PyTorch pickles, which run code when they are read",
    "*.pth": "PyTorch pickles, which run code when they are read",
    "consolidated*.safetensors": "tensors under the names of Mistral's own format",
    "*.gguf": "a GGUF file already",
    "tf_model.h5": "TensorFlow's tensors",
    "flax_model.msgpack": "Flax's tensors",
}
AGAIN = "save or download the file again"
SAVE = "save it with transformers: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"


class Folder:
    """The files of a model as the hub has them. Reads are bounded; every error names the file."""

    def __init__(self, path: Path) -> None:
        """Raises FormatError where there is no such folder, or it has no config.json."""
        self.path = path
        if not path.is_dir():
            what = "this is a file" if path.exists() else "there is no such folder"
            raise FormatError(what, where=str(path), fix="give a folder with config.json and *.safetensors")

    @property
    def name(self) -> str:
        """The model's: the folder's, or the repository's where this is a snapshot in the hub's cache."""
        path = self.path.resolve()
        repository = path.parent.parent.name
        in_cache = path.parent.name == "snapshots" and repository.startswith("models--")
        return repository.rpartition("--")[2] if in_cache else path.name

    def __contains__(self, name: str) -> bool:
        return (self.path / name).is_file()

    def where(self, name: str) -> str:
        return str(self.path / name)

    def files(self) -> list[Path]:
        """The files that a conversion may read: all but GGUF files."""
        templates = self.path / "additional_chat_templates"
        found = [*self.path.iterdir(), *(templates.iterdir() if templates.is_dir() else ())]
        return [path for path in found if path.is_file() and path.suffix != ".gguf"]

    def read(self, name: str) -> bytes:
        """The bytes of a file. Raises FormatError."""
        file, size = open_file(self.path / name)
        with file:
            if size > MOST:
                what = f"a file of {human(size)} is over the limit of {human(MOST)}"
                raise FormatError(what, where=self.where(name))
            return file.read(MOST)

    def text(self, name: str) -> str | None:
        """A text file, None where there is none."""
        if name not in self:
            return None
        try:
            return self.read(name).decode("utf-8")
        except UnicodeDecodeError as error:
            what = f"byte {error.start} is not UTF-8"
            raise FormatError(what, where=self.where(name), fix=AGAIN) from None

    def json(self, name: str) -> dict[str, Any] | None:
        """A JSON file that holds an object, None where there is none."""
        text = self.text(name)
        if text is None:
            return None
        if not text.strip():
            raise FormatError("the file is empty", where=self.where(name), fix=AGAIN)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            what = f"this is no sound JSON: {error}"
            raise FormatError(what, where=self.where(name), fix=AGAIN) from None
        if not isinstance(found, dict):
            raise FormatError("this is no JSON object", where=self.where(name), fix=AGAIN)
        return found

    def config(self) -> dict[str, Any]:
        """config.json. Raises FormatError where it is missing."""
        found = self.json("config.json")
        if found is None:
            fix = "give the folder that holds config.json"
            raise FormatError("config.json is missing", where=str(self.path), fix=fix)
        return found

    def checkpoint(self) -> Checkpoint:
        """The tensors. Raises FormatError for files that are missing or damaged."""
        expected = self.json(INDEX)
        names = part_names(self, expected)
        parts = [SafeTensors.open(self.path / name) for name in names]
        found: dict[str, SafeTensors] = {}
        for part in parts:
            for name in part.tensors:
                if name in found:
                    what = f"tensor {name!r} is also in {found[name].path.name}"
                    raise FormatError(what, where=str(part.path), fix="take one of the files away")
                found[name] = part
        if expected is not None:
            check_index(self, expected["weight_map"], found)
        return Checkpoint(found)


@dataclass(frozen=True)
class Checkpoint:
    """Tensors of one or more files, by name."""

    parts: Mapping[str, SafeTensors]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __contains__(self, name: str) -> bool:
        return name in self.parts

    def __getitem__(self, name: str) -> StoredTensor:
        return self.parts[name].tensors[name]

    def data(self, name: str) -> NDArray[Any]:
        """A read-only view of the values as they are stored."""
        return self.parts[name].data(name)

    def drop(self, name: str) -> None:
        """The tensor will not be read again soon."""
        self.parts[name].drop(name)

    def where(self, name: str) -> str:
        return str(self.parts[name].path)

    def close(self) -> None:
        """Let go of the files."""
        for part in self.parts.values():
            part.close()


def part_names(folder: Folder, index: dict[str, Any] | None) -> list[str]:
    """The files that hold the tensors: by the index, as the only one, or by their numbers."""
    if index is not None:
        return indexed(folder, index)
    if SINGLE in folder:
        return [SINGLE]
    numbers = {path.name: match for path in folder.path.iterdir() if (match := PART.fullmatch(path.name))}
    if not numbers:
        raise no_tensors(folder)
    count = int(next(iter(numbers.values()))[2])
    wanted = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, min(count, 99999) + 1)]
    return present(folder, wanted, f"which has parts of {count}")


def indexed(folder: Folder, index: dict[str, Any]) -> list[str]:
    held = index.get("weight_map")
    if not isinstance(held, dict) or not all(isinstance(name, str) for name in held.values()):
        what = "'weight_map' does not give a file for each tensor"
        raise FormatError(what, where=folder.where(INDEX), fix=AGAIN)
    names = sorted(set(held.values()))
    for name in names:
        if not name.isprintable() or name in {"", ".", ".."} or "/" in name or "\\" in name:
            what = f"{name!r} is no name of a file in this folder"
            raise FormatError(what, where=folder.where(INDEX), fix=AGAIN)
    return present(folder, names, f"which {INDEX} names")


def present(folder: Folder, names: list[str], reason: str) -> list[str]:
    """The names, once all are there."""
    missing = [name for name in names if name not in folder]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        what = f"{missing[0]}{more}, {reason}, is missing"
        raise FormatError(what, where=str(folder.path), fix="finish the download")
    return names


def check_index(folder: Folder, held: Mapping[str, str], found: Mapping[str, SafeTensors]) -> None:
    """Raise FormatError unless the files hold what the index says."""
    for name, file in held.items():
        if name not in found or found[name].path.name != file:
            what = f"tensor {name!r} is not in {file}, where {INDEX} has it"
            raise FormatError(what, where=str(folder.path), fix="save or download the files again")
    extra = next((name for name in found if name not in held), None)
    if extra is not None:
        what = f"tensor {extra!r} of {found[extra].path.name} is not in {INDEX}"
        raise FormatError(what, where=str(folder.path), fix="save or download the files again")


def no_tensors(folder: Folder) -> FormatError:
    for pattern, what in STRANGERS.items():
        path = next(iter(sorted(folder.path.glob(pattern))), None)
        if path is not None:
            fix = "run it as it is" if pattern == "*.gguf" else SAVE
            return FormatError(f"no {SINGLE}; {path.name} is {what}", where=str(folder.path), fix=fix)
    return FormatError(f"{SINGLE} is missing", where=str(folder.path), fix="finish the download")
