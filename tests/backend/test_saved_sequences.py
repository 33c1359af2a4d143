"""Sequences in files, on every backend: the same bits afterwards, and nothing but what was saved is taken."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tiny_model import write_tiny

import puna
from puna.cache import saved
from puna.errors import FormatError, PunaError, RequestError

IDS = np.random.default_rng(4).integers(0, 280, 170).tolist()
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3": {"architecture": "gemma3"},  # a window
    "q8_0": {"load": {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}},  # keys are turned
}
BACKENDS = ["reference", "cpu"]


def load(path: Path, backend: str = "reference", **options: Any) -> puna.Model:
    return puna.load(path, backend=backend, **{"n_ctx": 256, **options})


def same(got: np.ndarray, want: np.ndarray, backend: str) -> bool:
    """To the bit; what a BLAS gives depends on where its operands lie, too."""
    if backend == "cpu":
        return bool(np.array_equal(got.view(np.uint32), want.view(np.uint32)))
    return bool(np.mean((got - want) ** 2) <= 1e-12 * np.mean(want**2))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits_after(name: str, backend: str, tmp_path: Path) -> None:
    """In an empty cache, and in the same one beside the original, the logits that follow are the same."""
    kind = dict(MODELS[name])
    options = kind.pop("load", {})
    path, file = write_tiny(tmp_path / "m.gguf", **kind), tmp_path / "kept"
    model, other = (load(path, backend, n_ctx=1024, **options) for _ in range(2))
    for count in (1, 64, 150):
        sequence = model.cache.open()
        model.step(sequence, IDS[:count])
        model.save(sequence, file)
        fresh, beside = other.restore(file), model.restore(file)
        assert fresh.tokens == beside.tokens == IDS[:count]
        for part in (IDS[150:151], IDS[151:]):
            want = model.step(sequence, part)
            assert same(other.step(fresh, part), want, backend)
            assert same(model.step(beside, part), want, backend)
        other.cache.close(fresh)
        model.cache.close(beside)
        model.cache.close(sequence)


def test_what_is_known_is_shared(tmp_path: Path) -> None:
    """Full pages that the cache knows are not read again: a second sequence takes only what no page of it has."""
    model, file = load(write_tiny(tmp_path / "m.gguf")), tmp_path / "kept"
    sequence = model.cache.open()
    model.step(sequence, IDS[:150])
    model.save(sequence, file)
    there = model.restore(file)
    assert there.pages[0][:2] == sequence.pages[0][:2]
    assert there.pages[0][2] != sequence.pages[0][2]
    fresh = load(tmp_path / "m.gguf")
    first = fresh.restore(file)
    fresh.cache.close(first)
    assert fresh.cache.reuse(fresh.cache.open(), IDS[:150]).count == 128


def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    """Saving deletes parts of the same file that nobody writes any more."""
    model = load(write_tiny(tmp_path / "m.gguf"))
    (tmp_path / ".kept.0123abcd.part").write_bytes(b"begun")
    model.save(model.cache.open(), tmp_path / "kept")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "m.gguf"]


def test_an_empty_sequence(tmp_path: Path) -> None:
    """A sequence that holds nothing is saved and comes back as such."""
    model = load(write_tiny(tmp_path / "m.gguf"))
    model.save(model.cache.open(), tmp_path / "kept")
    assert len(model.restore(tmp_path / "kept")) == 0


def test_a_full_cache(tmp_path: Path) -> None:
    """Where its pages do not fit, or its tokens the context, it says so and leaves the cache as it was."""
    path, file = write_tiny(tmp_path / "m.gguf"), tmp_path / "kept"
    model = load(path)
    sequence = model.cache.open()
    model.step(sequence, IDS[:150])
    model.save(sequence, file)
    with pytest.raises(RequestError, match="150 tokens do not fit the context of 128"):
        load(path, n_ctx=128).restore(file)
    other = load(path)
    held = other.cache.open()
    other.step(held, list(range(130)))
    with pytest.raises(RequestError, match="150 tokens do not fit beside what the cache's sequences hold"):
        other.restore(file)
    assert other.cache.sequences == [held]
    other.cache.close(held)
    assert len(other.restore(file)) == 150


@pytest.mark.parametrize(
    ("written", "loaded", "told"),
    [
        ({"architecture": "qwen2"}, {}, "architecture"),
        ({"seed": 1}, {}, "model"),
        ({"metadata": {"general.name": "another"}}, {}, "model"),
        ({}, {"cache_type_k": "f16"}, "keys"),
        ({}, {"cache_type_v": "q8_0"}, "values"),
        ({}, {"backend": "cpu"}, "backend"),
    ],
)
def test_others_are_refused(
    written: dict[str, Any], loaded: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """Another model, other weights alone, another backend or another type: a line that says which."""
    model = load(write_tiny(tmp_path / "m.gguf"))
    sequence = model.cache.open()
    model.step(sequence, IDS[:70])
    model.save(sequence, tmp_path / "kept")
    other = load(write_tiny(tmp_path / "n.gguf", **written), **loaded)
    with pytest.raises(RequestError, match=f"another model, or other options: {told} "):
        other.restore(tmp_path / "kept")
    assert other.cache.sequences == []


@pytest.fixture
def kept(tmp_path: Path) -> tuple[puna.Model, Path]:
    """A model with an empty cache, and a file of 70 tokens."""
    model = load(write_tiny(tmp_path / "m.gguf"))
    sequence = model.cache.open()
    model.step(sequence, IDS[:70])
    model.save(sequence, tmp_path / "kept")
    return load(tmp_path / "m.gguf"), tmp_path / "kept"


def refused(model: puna.Model, path: Path, data: bytes) -> str:
    """What a file with these bytes is refused with; the cache is as it was."""
    path.write_bytes(data)
    room = model.cache.room()
    with pytest.raises(PunaError) as error:
        model.restore(path)
    assert "\n" not in str(error.value)
    assert model.cache.sequences == []
    assert (model.cache.room(), len(model.cache.pools[0].known)) == (room, 0)
    return str(error.value)


def test_cut_and_longer_files(kept: tuple[puna.Model, Path]) -> None:
    """A file that ends anywhere before its end, or goes on after it, is refused."""
    model, path = kept
    data = path.read_bytes()
    for size in [*range(40), *range(40, len(data), 997), len(data) - 1]:
        refused(model, path, data[:size])
    assert "belong to 70 tokens" in refused(model, path, data + b"\0")


def test_changed_bytes(kept: tuple[puna.Model, Path]) -> None:
    """A bit that flips anywhere is noticed, in the data by the digest."""
    model, path = kept
    data = path.read_bytes()
    told = set()
    for place in [*range(0, 900, 7), *range(900, len(data), 1999), len(data) - 1]:
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        told.add(refused(model, path, bytes(changed)).split(": ")[1].split(";")[0])
    assert "the file is damaged" in told
    path.write_bytes(data)
    assert len(model.restore(path)) == 70


def signed(data: bytes, change: Callable[[dict[str, Any]], Any], ids: bytes = b"") -> bytes:
    """A file with another header, lengths and digest in order."""
    _, version, length = saved.FRONT.unpack_from(data)
    start = saved.FRONT.size
    header = json.loads(data[start : start + length])
    changed = change(header)
    encoded = changed if isinstance(changed, bytes) else json.dumps(header).encode()
    rest = ids + data[start + length + len(ids) : -saved.DIGEST]
    body = saved.FRONT.pack(saved.MAGIC, version, len(encoded)) + encoded + rest
    return body + hashlib.blake2b(body, digest_size=saved.DIGEST).digest()


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({"tokens": 10**30}, "belong to"),
        ({"tokens": -1}, "something else where numbers"),
        ({"tokens": True}, "something else where numbers"),
        ({"tokens": 70.0}, "something else where numbers"),
        ({"tokens": 71}, "belong to 71 tokens"),
        ({"first": [1]}, "looked back to"),
        ({"first": []}, "looked back to"),
        ({"first": 0}, "something else where numbers"),
        ({"first": [[0]]}, "something else where numbers"),
        ({"border": 1}, "no state at the border"),
        ({"border": -1}, "something else where numbers"),
        ({"text": 1}, "cannot be an encoded text"),
        ({"facts": []}, "another model"),
        ({"facts": 5}, "header cannot be read"),
        ({"more": 1}, "header cannot be read"),
        (b"[" * 100_000, "header cannot be read"),
        (b"[]", "header cannot be read"),
        (b"\xff", "header cannot be read"),
        (b'{"tokens": ' + b"9" * 5000 + b"}", "header cannot be read"),
        (b" " * (1 << 20) + b"{}", "does not fit"),
    ],
)
def test_lying_headers(header: dict[str, Any] | bytes, told: str, kept: tuple[puna.Model, Path]) -> None:
    """A header that says what cannot be is refused although the digest is right."""
    model, path = kept
    change = (lambda _: header) if isinstance(header, bytes) else (lambda found: found.update(header))
    assert told in refused(model, path, signed(path.read_bytes(), change))


def test_ids_that_no_token_has(kept: tuple[puna.Model, Path]) -> None:
    """Ids beyond the vocabulary are refused although the digest is right."""
    model, path = kept
    data = path.read_bytes()
    for wrong in (-1, model.n_vocab):
        ids = np.array([wrong], "<i4").tobytes()
        assert "ids that no token has" in refused(model, path, signed(data, lambda _: None, ids))


def test_files_that_are_none(kept: tuple[puna.Model, Path], tmp_path: Path) -> None:
    """A model, a folder, a pipe and a missing file are refused in words, to read and to write."""
    model, path = kept
    with pytest.raises(FormatError, match="no saved sequence"):
        model.restore(tmp_path / "m.gguf")
    with pytest.raises(FormatError, match="folder"):
        model.restore(tmp_path)
    with pytest.raises(FormatError, match="cannot read the file"):
        model.restore(tmp_path / "nothing")
    sequence = model.restore(path)
    with pytest.raises(RequestError, match="this is a folder"):
        model.save(sequence, tmp_path)
    with pytest.raises(RequestError, match="there is no such folder"):
        model.save(sequence, tmp_path / "none" / "kept")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(FormatError, match="pipe"):
            model.restore(tmp_path / "pipe")
        with pytest.raises(RequestError, match="a device or a pipe"):
            model.save(sequence, tmp_path / "pipe")
    model.cache.close(sequence)
    with pytest.raises(RequestError, match="closed"):
        model.save(sequence, path)


def test_a_failed_save_leaves_the_old_file(kept: tuple[puna.Model, Path]) -> None:
    """A write that fails half way leaves what was there before, and nothing beside it."""
    model, path = kept
    sequence, before = model.restore(path), path.read_bytes()
    files = sorted(path.parent.iterdir())
    with (
        mock.patch("os.fsync", side_effect=OSError(28, "No space left on device")),
        pytest.raises(RequestError, match="No space left"),
    ):
        model.save(sequence, path)
    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == files
