"""Models in several files: `name-00001-of-00003.gguf` and so on, as llama.cpp's gguf-split writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from puna.errors import FormatError
from puna.gguf.cursor import quoted
from puna.gguf.header import Header
from puna.gguf.metadata import Metadata

__all__ = ["check_parts", "part_name", "part_paths", "split_name"]

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"  # the number counts from 0
NAME = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


def split_name(name: str) -> tuple[str, int, int] | None:
    """The stem, the number from 1 and the count of parts that a part's file name gives; None for any other."""
    found = NAME.fullmatch(name)
    return (found[1], int(found[2]), int(found[3])) if found else None


def part_name(stem: str, number: int, count: int) -> str:
    """The file name of a part; the number counts from 1."""
    return f"{stem}-{number:05d}-of-{count:05d}.gguf"


def part_paths(path: Path, metadata: Metadata) -> tuple[tuple[Path, ...], int]:
    """The files of the model of which `path` is one, in order, and the place of `path` among them.

    Raises FormatError where the name is not that of the part it says it is, or where a part is missing.
    """
    count = metadata.integer(COUNT, default=1)
    if count <= 1:
        return (path,), 0
    number = metadata.integer(NUMBER)
    name = split_name(path.name)
    if not 0 <= number < count:
        raise FormatError(
            f"this is part {number + 1} of {count}", where=str(path), fix="split the model again"
        )
    if name is None or name[1:] != (number + 1, count):
        raise FormatError(
            f"metadata say this is part {number + 1} of {count}, but its name does not",
            where=str(path),
            fix=f"name it like {part_name('model', number + 1, count)}",
        )
    paths = tuple(path.with_name(part_name(name[0], part + 1, count)) for part in range(count))
    for part, other in enumerate(paths):
        if not other.exists():
            raise FormatError(
                f"part {part + 1} of {count} is missing", where=str(other), fix="put all parts in one folder"
            )
    return paths, number


def check_parts(headers: Sequence[Header]) -> None:
    """Raise FormatError unless the files are the parts of one model, in order, each tensor in one of them."""
    first, tensor_count = headers[0], sum(len(header.tensors) for header in headers)
    seen: dict[str, str] = {}
    for part, header in enumerate(headers):
        metadata = header.metadata
        facts = {
            NUMBER: (metadata.integer(NUMBER), part),
            COUNT: (metadata.integer(COUNT), len(headers)),
            TENSORS: (metadata.integer(TENSORS, default=tensor_count), tensor_count),
            "version": (header.version, first.version),
            "byte order": (header.byteorder, first.byteorder),
        }
        for fact, (held, needed) in facts.items():
            if held != needed:
                raise disagreement(f"its {fact} is {held}, where the other parts make it {needed}", metadata)
        for tensor in header.tensors:
            if tensor.name in seen:
                raise disagreement(f"tensor {quoted(tensor.name)} is in {seen[tensor.name]} too", metadata)
            seen[tensor.name] = metadata.where


def disagreement(what: str, metadata: Metadata) -> FormatError:
    return FormatError(what, where=metadata.where, fix="take all parts from one download")
