"""A model cut into files, and put together again: names and keys are llama-gguf-split's."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from puna.edit.files import Silent, copied, metadata_of
from puna.errors import RequestError
from puna.gguf import GGUFFile, TensorInfo, Value, ValueType, write
from puna.gguf.cursor import quoted
from puna.gguf.header import DEFAULT_ALIGNMENT, padding
from puna.gguf.output import cannot_write, check_room, free_target, lock, partial_path
from puna.gguf.split import part_name, split_name
from puna.gguf.writer import header_bytes
from puna.progress import Progress

__all__ = ["Part", "cut", "merge", "parse_size", "part_paths_of", "split", "stem_of"]

UNITS = {
    "": 0,
    "K": 1,
    "M": 2,
    "G": 3,
    "T": 4,
}  # powers of 1000, as llama-gguf-split counts; KiB and so on: of 1024
SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([KMGT]?)(I?B)?", re.ASCII | re.IGNORECASE)
MOST_PARTS = 65535  # split.count is a uint16


@dataclass(frozen=True)
class Part:
    """tensors: of one file.  nbytes: of the whole file."""

    tensors: tuple[TensorInfo, ...]
    nbytes: int


def parse_size(text: str) -> int:
    """Bytes from `2G`, `1.5GB` or `500M`, in powers of 1000, or `2GiB`. Raises RequestError."""
    found = SIZE.fullmatch(text)
    base = 1024 if found and (found[3] or "").upper() == "IB" else 1000
    size = int(float(found[1]) * base ** UNITS[found[2].upper()]) if found else 0
    if size < 1:
        raise RequestError(f"{text!r} is no size", fix="give one such as 2G or 500M")
    return size


def cut(file: GGUFFile, *, max_bytes: int | None = None, max_tensors: int | None = None) -> list[Part]:
    """Tensors in order, in as few files as the limits allow. The bytes of a file are all of them.

    Raises RequestError where a tensor by itself is over the limit, or where there would be over 65535 files.
    """
    most, last, found = max_bytes or file.size * 2, max_tensors or len(file.tensors), list[Part]()
    layout = Layout.of(file, 0)
    for tensor in file.tensors.values():
        grown = layout.with_tensor(tensor)
        if layout.tensors and (grown.nbytes > most or len(layout.tensors) == last):
            found.append(layout.part)
            grown = Layout.of(file, len(found)).with_tensor(tensor)
        if grown.nbytes > most:
            what = f"a file with tensor {quoted(tensor.name)} takes {grown.nbytes:,} bytes, over {most:,}"
            raise RequestError(what, where=str(file.path), fix="allow larger files")
        layout = grown
    found.append(layout.part)
    if len(found) > MOST_PARTS:
        what = f"{len(found)} files are more than the {MOST_PARTS} that the format counts"
        raise RequestError(what, where=str(file.path), fix="allow larger files")
    return found


@dataclass(frozen=True)
class Layout:
    """A file as it grows. header, data: bytes, without the padding between them.  alignment: of the data."""

    tensors: tuple[TensorInfo, ...]
    header: int
    data: int
    alignment: int

    @classmethod
    def of(cls, file: GGUFFile, number: int) -> Layout:
        """A file without tensors."""
        return cls((), header_bytes(part_metadata(file, number, 0)), 0, part_alignment(file, number))

    def with_tensor(self, tensor: TensorInfo) -> Layout:
        row = 8 + len(tensor.name.encode()) + 4 + 8 * len(tensor.shape) + 4 + 8
        padded = tensor.nbytes + padding(tensor.nbytes, self.alignment)
        return Layout((*self.tensors, tensor), self.header + row, self.data + padded, self.alignment)

    @property
    def nbytes(self) -> int:
        return self.header + padding(self.header, self.alignment) + self.data

    @property
    def part(self) -> Part:
        return Part(self.tensors, self.nbytes)


def part_alignment(file: GGUFFile, number: int) -> int:
    """Only the first file has the key that changes it."""
    return file.alignment if number == 0 else DEFAULT_ALIGNMENT


def part_metadata(file: GGUFFile, number: int, count: int) -> dict[str, Value]:
    """The first file has all of the model's; each has its number from 0, the tensors and files of the model."""
    own = {
        "split.no": Value(ValueType.UINT16, number),
        "split.tensors.count": Value(ValueType.INT32, len(file.tensors)),
        "split.count": Value(ValueType.UINT16, count),
    }
    return {**metadata_of(file), **own} if number == 0 else own


def part_paths_of(prefix: str | Path, count: int) -> list[Path]:
    """PREFIX-00001-of-00003.gguf and so on. Raises RequestError where the prefix is a folder, or no path."""
    if str(prefix).endswith(("/", os.sep)) or Path(prefix).is_dir():
        fix = f"name the files in it, such as {Path(prefix) / 'model'}"
        raise RequestError("this is a folder", where=str(prefix), fix=fix)
    prefix = Path(prefix)
    return [prefix.with_name(part_name(prefix.name, number + 1, count)) for number in range(count)]


def split(
    file: GGUFFile, prefix: str | Path, parts: Sequence[Part], *, progress: Progress | None = None
) -> list[Path]:
    """Write the parts, all of them or none, and return their paths. Raises RequestError where that fails."""
    progress = progress or Silent()
    targets = [free_target(path, file.paths) for path in part_paths_of(prefix, len(parts))]
    check_room(targets[0], sum(part.nbytes for part in parts))
    progress.start("splitting", sum(tensor.nbytes for tensor in file.tensors.values()))
    try:
        with beside(targets, Path(prefix).name) as paths:
            for number, (part, path) in enumerate(zip(parts, paths, strict=True)):
                rows = [copied(file, tensor, progress) for tensor in part.tensors]
                metadata = part_metadata(file, number, len(parts))
                with named(path, targets[number]):
                    write(path, metadata, rows, version=file.version, byteorder=file.byteorder)
    finally:
        progress.done()
    return targets


@contextmanager
def beside(targets: Sequence[Path], name: str) -> Iterator[list[Path]]:
    """Paths in a new folder beside the targets, which get what is there at the end, unless something fails."""
    folder = partial_path(targets[0].with_name(name), "parts")
    try:
        with new_folder(folder):
            paths = [folder / target.name for target in targets]
            yield paths
            for path, target in zip(paths, targets, strict=True):
                path.replace(target)
    except OSError as error:
        raise cannot_write(error, targets[0].parent, "the files") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def named(path: Path, target: Path) -> Iterator[None]:
    """Errors name the target, not the path in the folder that goes."""
    try:
        yield
    except RequestError as error:
        where = str(target) if error.where == str(path) else error.where
        raise RequestError(error.what, where=where, fix=error.fix) from None


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """A folder that is locked while it is worked in."""
    folder.mkdir()
    if os.name == "nt":  # folders cannot be opened there
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def stem_of(prefix: str) -> str:
    """The prefix, without the number of a part where it ends in one."""
    found = split_name(Path(prefix).name)
    return str(Path(prefix).with_name(found[0])) if found else prefix


def merge(file: GGUFFile, target: str | Path, *, progress: Progress | None = None) -> None:
    """Write a model of several files as one. Raises RequestError where it is one already, or cannot be written."""
    if len(file.paths) == 1:
        raise RequestError("this model is in one file already", where=str(file.path))
    free_target(target, file.paths)
    progress = progress or Silent()
    progress.start("merging", sum(tensor.nbytes for tensor in file.tensors.values()))
    try:
        rows = [copied(file, tensor, progress) for tensor in file.tensors.values()]
        write(target, metadata_of(file), rows, version=file.version, byteorder=file.byteorder)
    finally:
        progress.done()
