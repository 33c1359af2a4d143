"""Metadata keys set in copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_files import read_all, same, sample_metadata, write_sample

from puna.edit.keys import TYPES, set_key, value_of
from puna.edit.parts import cut, split
from puna.errors import RequestError
from puna.gguf import GGUFFile, Metadata, Value, ValueType

METADATA = Metadata.of(sample_metadata())


def test_value_keeps_the_type() -> None:
    """A text becomes a value of the type that the key has."""
    for kind in set(TYPES.values()) - {ValueType.STRING, ValueType.BOOL}:
        value = value_of(METADATA, f"{kind.label}.0", "7")
        assert (value.type, value.value) == (kind, 7)
        value = value_of(METADATA, f"{kind.label}.array", "[7, 8]")
        assert (value.type, list(value.value)) == (kind, [7, 8])
    assert value_of(METADATA, "string.0", "7").value == "7"
    assert value_of(METADATA, "bool.0", "TRUE").value is True
    assert list(value_of(METADATA, "bool.array", "[true, false]").value) == [True, False]
    assert value_of(METADATA, "string.array", '["a", "b"]').value == ("a", "b")
    assert value_of(METADATA, "float32.0", "-1e-3").value == pytest.approx(-1e-3)


def test_named_types() -> None:
    """A type by name is for new keys, and changes that of old ones."""
    assert value_of(METADATA, "new", "7", "uint8").type is ValueType.UINT8
    assert value_of(METADATA, "int8.0", "7", "uint64").type is ValueType.UINT64
    value = value_of(METADATA, "new", '["a"]', "string[]")
    assert (value.type, value.value) == (ValueType.STRING, ("a",))


REFUSED = {
    "alignment": (
        "general.alignment",
        "64",
        None,
        "'general.alignment': this key says how the file is laid out",
    ),
    "split": ("split.count", "2", "uint16", "'split.count': this key says how the file is laid out"),
    "no name": ("", "2", "uint16", "a key has a name"),
    "new": ("uint8.9", "2", None, "new, and has no type (the nearest that are there: uint8.1, uint8.0"),
    "no integer": ("uint8.0", "x", None, "'uint8.0': 'x' is no uint8: it is not a whole number"),
    "fraction": ("uint8.0", "1.5", None, "'1.5' is no uint8: it is not a whole number"),
    "too large": ("uint8.0", "256", None, "'256' is no uint8: 256 does not fit uint8"),
    "no UTF-8": ("string.0", "\udcff", None, "it is not UTF-8"),
    "no UTF-8 in a list": ("string.array", r'["\ud800"]', None, "it is not UTF-8"),
    "infinite": ("float64.0", "1e400", None, "'1e400' is no float64: it is not a finite number"),
    "NaN": ("float32.0", "nan", None, "it is not a finite number"),
    "NaN in a list": ("float32.array", "[NaN]", None, "it is not a finite number"),
    "no number": ("float32.0", "x", None, "'x' is no float32: it is not a number"),
    "large number": ("float32.0", "1e60", None, "too large for float32"),
    "no bool": ("bool.0", "yes", None, "'yes' is no bool: write true or false"),
    "no list": ("int32.array", "7", None, "'7' is no int32[]: write a list"),
    "no JSON": ("int32.array", "[7", None, "'[7' is no int32[]: "),
    "other elements": ("int32.array", '["a"]', None, "is no int32[]"),
    "fractions": ("int32.array", "[1.5]", None, "is no int32[]"),
    "no strings": ("string.array", "[1]", None, "is no string[]"),
    "nested": ("nested", "[[1]]", None, "arrays of arrays cannot be set"),
    "type": ("new", "1", "unt8", "--type: there is no type 'unt8'; use one of uint8"),
    "array type": ("new", "1", "array", "there is no type 'array'"),
}


@pytest.mark.parametrize(("key", "text", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(key: str, text: str, kind: str | None, message: str) -> None:
    """What would break the file, has no type, or is no value of it, is one line."""
    with pytest.raises(RequestError) as error:
        value_of(METADATA, key, text, kind)
    assert message in str(error.value)
    assert str(error.value).isprintable()


def test_copy(tmp_path: Path) -> None:
    """The copy differs in the key alone, which keeps its place."""
    source = write_sample(tmp_path / "in.gguf", version=2, alignment=64)
    with GGUFFile.open(source) as file:
        set_key(file, tmp_path / "out.gguf", "int16.0", Value(ValueType.INT16, 5))
        set_key(file, tmp_path / "new.gguf", "new", Value(ValueType.STRING, "x"))
    (before, data), (after, copied) = read_all(source), read_all(tmp_path / "out.gguf")
    assert data == copied
    assert list(after) == list(before)
    assert after["int16.0"] == 5
    assert all(same(before[key], after[key]) for key in before if key != "int16.0")
    assert list(read_all(tmp_path / "new.gguf")[0])[-1] == "new"
    with GGUFFile.open(source) as file:
        set_key(file, tmp_path / "back.gguf", "int16.0", file.metadata.typed("int16.0"))
    assert (tmp_path / "back.gguf").read_bytes() == source.read_bytes()


def test_model_of_several_files(tmp_path: Path) -> None:
    """The copy of a model in several files is one."""
    with GGUFFile.open(write_sample(tmp_path / "in.gguf")) as file:
        paths = split(file, tmp_path / "p", cut(file, max_tensors=1))
    with GGUFFile.open(paths[2]) as file:
        set_key(file, tmp_path / "out.gguf", "new", Value(ValueType.UINT8, 1))
    metadata, data = read_all(tmp_path / "out.gguf")
    assert not any(key.startswith("split.") for key in metadata)
    assert data == read_all(tmp_path / "in.gguf")[1]


def test_out_is_never_in(tmp_path: Path) -> None:
    """The file to read is not written to."""
    source = write_sample(tmp_path / "in.gguf")
    with GGUFFile.open(source) as file, pytest.raises(RequestError, match="this is the file to read"):
        set_key(file, source, "new", Value(ValueType.UINT8, 1))
