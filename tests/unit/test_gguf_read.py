"""Reading GGUF: every value type, both versions and byte orders, mapped and plain."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import (
    EXTREMES,
    F32,
    NESTED_PLAIN,
    array,
    gguf,
    key,
    random_bytes,
    read_all,
    row,
    same,
    sample_metadata,
    sample_tensors,
    text,
    write_sample,
)

from puna.errors import ModelError, RequestError
from puna.gguf import GGUFFile, ValueType, write
from puna.gguf.header import read_header

FORMS = [(version, byteorder) for version in (2, 3) for byteorder in ("little", "big")]
both = pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "plain"])


@both
@pytest.mark.parametrize(("version", "byteorder"), FORMS)
def test_every_form_reads_alike(tmp_path: Path, version: int, byteorder: Any, mmap: bool) -> None:
    """Version, byte order and way of reading change neither values, nor types, nor tensor bytes."""
    path = write_sample(tmp_path / "model.gguf", version=version, byteorder=byteorder)
    with GGUFFile.open(path, mmap=mmap) as file:
        assert (file.version, file.byteorder, file.alignment) == (version, byteorder, 32)
        assert (file.path, file.paths, file.size) == (path, (path,), path.stat().st_size)
        for kind, values in EXTREMES.items():
            for name in (f"{kind.label}.0", f"{kind.label}.1"):
                assert file.metadata.type_of(name) is kind
                assert type(file.metadata[name]) is type(values[0])
            assert (file.metadata[f"{kind.label}.0"], file.metadata[f"{kind.label}.1"]) == values
            assert same(file.metadata[f"{kind.label}.array"], values)
            assert file.metadata.type_of(f"{kind.label}.empty") is ValueType.ARRAY
            assert file.metadata.element_type(f"{kind.label}.empty") is kind
            assert len(file.metadata[f"{kind.label}.empty"]) == 0
        assert same(file.metadata["nested"], NESTED_PLAIN)
        assert list(file.metadata) == list(sample_metadata())
        for name, quant, shape, data in sample_tensors():
            assert (file.tensors[name].quant, file.tensors[name].shape) == (quant, shape)
            assert file.tensors[name].nbytes == data.nbytes
            assert file.data(name).shape == (*shape[:-1], quant.row_bytes(shape[-1]))
            assert np.array_equal(file.data(name), data)


def test_shape_is_reversed(tmp_path: Path) -> None:
    """The file's fastest dimension is the last of the shape."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(rows=[row(dims=(4, 3, 2))], data=bytes(96)))
    with GGUFFile.open(path) as file:
        assert file.tensors["t"].shape == (2, 3, 4)
        assert file.data("t").shape == (2, 3, 16)


@both
@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_everything_read_is_read_only(tmp_path: Path, byteorder: Any, mmap: bool) -> None:
    """Neither tensor data nor arrays of the metadata can be written to, nor the table of tensors."""
    with GGUFFile.open(write_sample(tmp_path / "m.gguf", byteorder=byteorder), mmap=mmap) as file:
        arrays = [value for value in file.metadata.values() if isinstance(value, np.ndarray)]
        assert len(arrays) == 22
        for values in (*arrays, *map(file.data, file.tensors)):
            assert not values.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                values[...] = 0
        with pytest.raises(TypeError):
            file.tensors["norm"] = file.tensors["a.weight"]  # type: ignore[index]


def test_arrays_are_in_the_machines_byte_order(tmp_path: Path) -> None:
    """Arrays of a big-endian file can be used as they are."""
    with GGUFFile.open(write_sample(tmp_path / "m.gguf", byteorder="big")) as file:
        assert all(v.dtype.isnative for v in file.metadata.values() if isinstance(v, np.ndarray))


def test_mapped_data_is_a_view(tmp_path: Path) -> None:
    """Of a mapped little-endian file the same bytes of memory come each time."""
    with GGUFFile.open(write_sample(tmp_path / "m.gguf")) as file:
        assert np.shares_memory(file.data("c"), file.data("c"))
    with GGUFFile.open(tmp_path / "m.gguf", mmap=False) as file:
        assert not np.shares_memory(file.data("c"), file.data("c"))


@both
def test_views_outlive_the_file(tmp_path: Path, mmap: bool) -> None:
    """Data taken before `close` is good after it; `close` twice is allowed; `data` after it says so."""
    path = write_sample(tmp_path / "m.gguf")
    file = GGUFFile.open(path, mmap=mmap)
    view = file.data("c")
    file.close()
    file.close()
    assert np.array_equal(view, sample_tensors()[-1][-1])
    assert file.metadata["general.architecture"] == "llama"
    with pytest.raises(RequestError, match=r"m\.gguf: the file is closed"):
        file.data("c")


def test_last_view_unmaps_the_file(tmp_path: Path) -> None:
    """The mapping goes with the last view, not before."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("the system does not list mappings")
    path = write_sample(tmp_path / "m.gguf")
    file = GGUFFile.open(path)
    view = file.data("c")[1:]
    file.close()
    assert str(path) in maps.read_text()
    del view
    assert str(path) not in maps.read_text()


@both
def test_opening_reads_the_header_only(tmp_path: Path, mmap: bool) -> None:
    """A file of 1 GiB opens within 2 MiB of memory, without its data."""
    path = tmp_path / "m.gguf"
    head = gguf(rows=[row(dims=(1 << 26, 4))])
    with path.open("wb") as out:
        out.write(head)
        out.truncate(len(head) + (1 << 30))
    tracemalloc.start()
    with GGUFFile.open(path, mmap=mmap) as file:
        assert file.tensors["t"].nbytes == 1 << 30
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20
    with path.open("rb", buffering=0) as raw:
        read_header(raw, path.stat().st_size, "m")
        assert raw.tell() <= 1 << 16


@pytest.mark.parametrize("cut", range(56))
def test_strings_across_reads(tmp_path: Path, cut: int) -> None:
    """A vocabulary larger than one read is whole, wherever the reads' borders fall."""
    words = [f"{'x' * (n % 40)}é{n}" for n in range(6000)]
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([key("k" * (cut + 1), 9, array(8, len(words), b"".join(map(text, words))))]))
    with GGUFFile.open(path) as file:
        assert file.metadata["k" * (cut + 1)] == tuple(words)


def test_alignment(tmp_path: Path) -> None:
    """`general.alignment` moves the data; files that leave gaps between tensors are read."""
    path = tmp_path / "m.gguf"
    keys = [key("general.alignment", 4, b"\x00\x01\x00\x00")]
    first, second = random_bytes((32,), 1), random_bytes((32,), 2)
    data = second.tobytes() + bytes(480) + first.tobytes()
    path.write_bytes(gguf(keys, [row("a", offset=512), row("b")], data, alignment=256))
    with GGUFFile.open(path) as file:
        assert (file.alignment, file.tensors["a"].offset % 256) == (256, 0)
        assert np.array_equal(file.data("a"), first)
        assert np.array_equal(file.data("b"), second)


def test_padding_behind_the_last_tensor_may_lack(tmp_path: Path) -> None:
    """A file may end with the last byte of its data, or with zeros behind it."""
    path = tmp_path / "m.gguf"
    for padding in (0, 28):
        path.write_bytes(gguf(rows=[row(dims=(1,))], data=b"\0\0\x80?" + bytes(padding)))
        assert read_all(path)[1] == {"t": b"\0\0\x80?"}


def test_file_without_tensors(tmp_path: Path) -> None:
    """A vocabulary alone is a file too."""
    write(tmp_path / "m.gguf", {"a": 1}, [])
    assert read_all(tmp_path / "m.gguf") == ({"a": 1}, {})


def test_missing_tensor(tmp_path: Path) -> None:
    """Data of a tensor that is not there is a ModelError with file and name."""
    with (
        GGUFFile.open(write_sample(tmp_path / "m.gguf")) as file,
        pytest.raises(ModelError, match=r"m\.gguf: missing tensor 'output\.weight'"),
    ):
        file.data("output.weight")


def test_shrinking_file(tmp_path: Path) -> None:
    """A plain read of a file that was cut short while open says so."""
    path = write_sample(tmp_path / "m.gguf")
    with GGUFFile.open(path, mmap=False) as file:
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(Exception, match="became shorter") as caught:
            file.data("c")
        assert "\n" not in str(caught.value)


def test_path_may_be_text(tmp_path: Path) -> None:
    """`open` and `write` take a str or a Path."""
    path = str(tmp_path / "m.gguf")
    write(path, {}, [("t", F32, (1,), random_bytes((4,), 0))])
    with GGUFFile.open(path) as file:
        assert file.path == Path(path)
