"""One metadata key of a model set to another value, in a copy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from puna.edit.files import Silent, copied, metadata_of
from puna.errors import RequestError
from puna.gguf import GGUFFile, Metadata, Value, ValueType, write
from puna.gguf.cursor import quoted
from puna.gguf.exact import exact
from puna.gguf.header import ALIGNMENT_KEY
from puna.gguf.output import free_target
from puna.progress import Progress

__all__ = ["ARRAY", "TYPES", "set_key", "value_of"]

ARRAY = "[]"  # after the type of the elements
TYPES: Mapping[str, ValueType] = {kind.label: kind for kind in ValueType if kind is not ValueType.ARRAY}
BOOLEANS: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}


def value_of(metadata: Metadata, key: str, text: str, type_name: str | None = None) -> Value:
    """What a text stands for, in the key's type, or in the one that is named, such as `uint32` or `string[]`.

    An array is JSON. Raises RequestError where the key is one that holds the file together, is new and has no
    type, or the text is no value of its type.
    """
    if key == ALIGNMENT_KEY or key.startswith("split.") or not key:
        what = "this key says how the file is laid out" if key else "a key has a name"
        raise RequestError(what, where=quoted(key), fix="set another")
    if type_name is not None:
        kind, is_array = named_type(type_name)
    elif key in metadata:
        kind, is_array = metadata.element_type(key), metadata.type_of(key) is ValueType.ARRAY
    else:
        near = get_close_matches(key, metadata, n=3, cutoff=0.6)
        hint = f" (the nearest that are there: {', '.join(near)})" if near else ""
        what = f"this key is new, and has no type{hint}"
        raise RequestError(what, where=quoted(key), fix=f"add --type {TYPES['string'].label} or the like")
    try:
        return exact(Value(kind, array(kind, text) if is_array else scalar(kind, text)))
    except (ValueError, OverflowError) as error:
        word = f"{kind.label}{ARRAY}" if is_array else kind.label
        raise RequestError(f"{text!r} is no {word}: {error}", where=quoted(key)) from None


def named_type(name: str) -> tuple[ValueType, bool]:
    """`uint32` or `uint32[]`. Raises RequestError."""
    word = name.removesuffix(ARRAY)
    if word not in TYPES:
        near = ", ".join(get_close_matches(word, TYPES) or TYPES)
        raise RequestError(f"there is no type {name!r}", where="--type", fix=f"use one of {near}")
    return TYPES[word], name.endswith(ARRAY)


def scalar(kind: ValueType, text: str) -> Any:
    return PARSERS.get(kind, integer)(text)


def integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("it is not a whole number") from None


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("it is not a number") from None
    if not math.isfinite(value):
        raise ValueError("it is not a finite number")
    return value


def string(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it is not UTF-8") from None
    return text


def boolean(text: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise ValueError("write true or false")
    return BOOLEANS[text.lower()]


def array(kind: ValueType, text: str) -> list[Any]:
    if kind is ValueType.ARRAY:
        raise ValueError("arrays of arrays cannot be set")
    found = json.loads(text)  # JSONDecodeError is a ValueError
    if not isinstance(found, list):
        raise ValueError('write a list, such as [1, 2] or ["a", "b"]')
    for item in found:
        if isinstance(item, float):
            number(repr(item))
        elif isinstance(item, str):
            string(item)
    return found


PARSERS: Mapping[ValueType, Callable[[str], Any]] = {
    ValueType.STRING: string,
    ValueType.BOOL: boolean,
    ValueType.FLOAT32: number,
    ValueType.FLOAT64: number,
}


def set_key(
    file: GGUFFile, target: str | Path, key: str, value: Value, *, progress: Progress | None = None
) -> None:
    """Write a copy with the key in its place, or at the end where it is new; a model of several files becomes one.

    Raises RequestError where the copy cannot be written.
    """
    free_target(target, file.paths)
    progress = progress or Silent()
    progress.start("copying", sum(tensor.nbytes for tensor in file.tensors.values()))
    try:
        rows = [copied(file, tensor, progress) for tensor in file.tensors.values()]
        write(target, {**metadata_of(file), key: value}, rows, version=file.version, byteorder=file.byteorder)
    finally:
        progress.done()
