"""Against the `gguf` package: each reads what the other writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import EXTREMES, F32, Q8_0, random_bytes, read_all, same, sample_tensors, write_sample

from puna.gguf import GGUFFile, Value, ValueType, write

ORDERS = {"little": gguf.GGUFEndian.LITTLE, "big": gguf.GGUFEndian.BIG}


def their_sample(path: Path, byteorder: str = "little", **options: Any) -> None:
    """The sample's values and tensors, by their writer."""
    writer = gguf.GGUFWriter(path, "llama", endianess=ORDERS[byteorder], **options)
    for kind, values in EXTREMES.items():
        code, plain = gguf.GGUFValueType(kind), [raw(value) for value in values]
        for number, value in enumerate(plain):
            writer.add_key_value(f"{kind.label}.{number}", value, code)
        writer.add_key_value(f"{kind.label}.array", plain, gguf.GGUFValueType.ARRAY, code)
    writer.add_key_value("nested", [[1, 2], ["a"]], gguf.GGUFValueType.ARRAY)
    for name, quant, shape, data in sample_tensors():
        code = gguf.GGMLQuantizationType(quant.id)
        if code.name.startswith("F"):
            theirs = data.view({2: "<f2", 4: "<f4"}[quant.bytes]).reshape(shape)
            writer.add_tensor(name, theirs, tensor_endianess=ORDERS["little"])
        elif byteorder == "little":  # it swaps no blocks
            writer.add_tensor(name, data, raw_dtype=code)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def raw(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


@pytest.mark.parametrize("byteorder", ORDERS)
def test_reads_their_files(tmp_path: Path, byteorder: str) -> None:
    """Every value type, and tensors, in both byte orders."""
    their_sample(tmp_path / "m.gguf", byteorder)
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert file.byteorder == byteorder
        for kind, values in EXTREMES.items():
            for number in range(2):
                assert file.metadata.type_of(f"{kind.label}.{number}") is kind
                assert same(file.metadata[f"{kind.label}.{number}"], values[number])
            assert file.metadata.element_type(f"{kind.label}.array") is kind
            assert same(file.metadata[f"{kind.label}.array"], values)
        assert same(file.metadata["nested"], [[1, 2], ["a"]])
        for name, quant, shape, data in sample_tensors():
            if name in file.tensors:
                assert (file.tensors[name].quant, file.tensors[name].shape) == (quant, shape)
                assert np.array_equal(file.data(name), data)
        assert len(file.tensors) == (4 if byteorder == "little" else 3)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("byteorder", ORDERS)
def test_they_read_ours(tmp_path: Path, byteorder: Any, version: int) -> None:
    """Every value type that their reader knows, and tensors, in both byte orders and versions."""
    keys: dict[str, Any] = {}
    for kind, values in EXTREMES.items():
        values = ("", "Ġé") if kind is ValueType.STRING else values  # theirs takes strict UTF-8 only
        keys |= {f"{kind.label}.{i}": Value(kind, value) for i, value in enumerate(values)}
        keys[f"{kind.label}.array"] = Value(kind, list(values))
    write(tmp_path / "m.gguf", keys, sample_tensors(), version=version, byteorder=byteorder)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.fields["GGUF.version"].contents() == version
    for name, value in keys.items():
        contents = reader.fields[name].contents()
        assert same(list(contents) if isinstance(value.value, list) else contents, value.value)
        assert reader.fields[name].types[-1] == value.type
    assert [tensor.name for tensor in reader.tensors] == [name for name, *_ in sample_tensors()]
    for tensor, (_, quant, shape, data) in zip(reader.tensors, sample_tensors(), strict=True):
        assert (int(tensor.tensor_type), tuple(tensor.shape.tolist()[::-1])) == (quant.id, shape)
        if byteorder == "little":
            assert tensor.data.tobytes() == data.tobytes()
        elif quant is F32:
            assert tensor.data.byteswap().tobytes() == data.tobytes()


def test_their_bytes_are_ours(tmp_path: Path) -> None:
    """Their file, written again by us, is the same file."""
    their_sample(tmp_path / "a.gguf")
    with GGUFFile.open(tmp_path / "a.gguf") as file:
        rows = [(t.name, t.quant, t.shape, file.data(t.name)) for t in file.tensors.values()]
        write(tmp_path / "b.gguf", file.metadata, rows)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize("byteorder", ORDERS)
def test_their_parts(tmp_path: Path, byteorder: str) -> None:
    """A model that their writer splits opens by any of its parts, as the whole does."""
    their_sample(tmp_path / "model.gguf", byteorder, split_max_tensors=1)
    parts = sorted(tmp_path.iterdir())
    assert len(parts) == (4 if byteorder == "little" else 3)
    whole = tmp_path / "whole.gguf"
    their_sample(whole, byteorder)
    for part in parts:
        metadata, tensors = read_all(part)
        assert metadata.pop("split.count") == len(parts)
        assert metadata.pop("split.no") == 0
        assert metadata.pop("split.tensors.count") == len(parts)
        expected = read_all(whole)
        assert all(same(metadata[name], value) for name, value in expected[0].items())
        assert (metadata.keys(), tensors) == (expected[0].keys(), expected[1])


def test_they_take_our_alignment(tmp_path: Path) -> None:
    """Alignment other than the default is theirs too."""
    tensors = [(name, Q8_0, (2, 32), random_bytes((2, 34), seed)) for seed, name in enumerate("ab")]
    write(tmp_path / "m.gguf", {}, tensors, alignment=1024)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.alignment == 1024
    assert [tensor.data.tobytes() for tensor in reader.tensors] == [data.tobytes() for *_, data in tensors]


def test_they_read_the_sample(tmp_path: Path) -> None:
    """Their reader takes empty and nested arrays in its stride."""
    reader = gguf.GGUFReader(write_sample(tmp_path / "m.gguf"))
    assert {"nested", "string.empty"} < reader.fields.keys()
