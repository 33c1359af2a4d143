"""Object code on disk: kept with its name, ignored when damaged or somebody else's, and never in the way."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from small_kernels import target

from puna.backends.cpu.codecache import CodeCache, default_folder
from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.lang import Kernel

CODE = bytes(range(256)) * 4 + b"\n"


@pytest.fixture
def cache(tmp_path: Path) -> CodeCache:
    found = CodeCache(tmp_path / "code")
    found.store("a1", CODE, name="linear.few panel=Q4_0", cpu="znver4")
    return found


def test_what_is_stored_is_loaded(cache: CodeCache) -> None:
    """Object code comes back byte for byte, line ends and all; an unknown key gives nothing."""
    assert cache.load("a1") == CODE
    assert cache.load("b2") is None


def test_entries_tell_what_is_there(cache: CodeCache) -> None:
    """Each sound file is listed with its kernel's name, processor and size."""
    cache.store("b2", b"", name="rows.rows ops=add", cpu="haswell")
    (first, second) = cache.entries()
    assert (first.key, first.name, first.cpu, first.bytes) == (
        "a1",
        "linear.few panel=Q4_0",
        "znver4",
        len(CODE),
    )
    assert (second.key, second.name, second.bytes) == ("b2", "rows.rows ops=add", 0)


@pytest.mark.parametrize("at", [0, 11, 12, 43, 44, 60, 200, -1])
def test_damaged_files_are_ignored(cache: CodeCache, at: int) -> None:
    """A bit changed anywhere makes a file as good as absent; so does a missing end."""
    stored = bytearray(cache.path("a1").read_bytes())
    stored[at] ^= 1
    cache.path("a1").write_bytes(stored)
    assert cache.load("a1") is None
    assert list(cache.entries()) == []
    stored[at] ^= 1
    cache.path("a1").write_bytes(stored[:-1])
    assert cache.load("a1") is None


def test_files_of_an_earlier_form_are_ignored(cache: CodeCache) -> None:
    """What another version of Puna wrote in another form is not read."""
    cache.path("a1").write_bytes(cache.path("a1").read_bytes().replace(b"puna code 2", b"puna code 1"))
    assert cache.load("a1") is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no numbered owners here")
def test_somebody_elses_code_is_not_run(cache: CodeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with another owner is ignored."""
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert cache.load("a1") is None


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are others there")
def test_files_are_their_owners_alone(cache: CodeCache) -> None:
    """Nobody else may read or write the folder or a file in it."""
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(cache.path("a1").stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    """Where no folder can be made, storing does nothing and loading finds nothing."""
    (tmp_path / "file").write_text("")
    cache = CodeCache(tmp_path / "file" / "code")
    cache.store("a1", CODE, name="n", cpu="c")
    assert cache.load("a1") is None
    assert list(cache.entries()) == []
    assert cache.clear() == 0


def test_clear(cache: CodeCache) -> None:
    """All files go, damaged and half-written ones too, and are counted; others stay."""
    cache.path("broken").write_bytes(b"")
    (cache.folder / ".new-abc").write_bytes(b"")
    (cache.folder / "notes.txt").write_text("mine")
    assert cache.clear() == 3
    assert [path.name for path in cache.folder.iterdir()] == ["notes.txt"]


def test_a_kernel_is_compiled_once(tmp_path: Path) -> None:
    """A second compiler takes what the first one stored, and knows that no time went into it."""

    def nothing(k: Kernel) -> None:
        pass

    spec, cache = Spec(nothing), CodeCache(tmp_path)
    compilers = [Compiler(target(None), cache) for _ in range(2)]
    for compiler in compilers:
        assert compiler.addresses_of([spec])[spec] != 0
    times = [compiler.seconds[spec] for compiler in compilers]
    assert times[0] is not None
    assert times[0] > 0
    assert times[1] is None
    (entry,) = cache.entries()
    assert (entry.name, entry.cpu) == ("test_cpu_codecache.nothing", target(None).cpu)


def test_processors_do_not_share_code() -> None:
    """Another processor, or the same with other features, has other keys."""
    from puna.backends.cpu.target import Target

    def nothing(k: Kernel) -> None:
        pass

    triple, spec = target(None).triple, Spec(nothing)
    targets = [Target(triple, cpu, features, frozenset()) for cpu in "ab" for features in ("+x", "-x")]
    assert len({Compiler(one, None).key(spec) for one in targets}) == len(targets)


def test_the_default_folder_is_a_cache() -> None:
    """Kernels lie in Puna's part of the user's cache folder."""
    assert default_folder().name == "code"
    assert "puna" in default_folder().parts
