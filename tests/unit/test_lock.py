"""Memory that is locked, and what a user is told where it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

import puna
from puna.backends import lock as module
from puna.backends.cpu.memory import allocate
from puna.backends.lock import lock, merged

STATUS = Path("/proc/self/status")


def locked() -> int:
    """Bytes of this process that are locked."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmLck:"))
    return int(line.split()[1]) * 1024


def test_ranges_become_whole_pages_once() -> None:
    """Ranges grow to whole pages, and those that touch or overlap are one."""
    page = module.mmap.PAGESIZE
    assert merged([(10 * page + 5, 10 * page + 6), (3, 4), (page - 1, page + 1)]) == [
        (0, 2 * page),
        (10 * page, 11 * page),
    ]


@pytest.mark.skipif(not STATUS.exists(), reason="this system does not tell what is locked")
def test_memory_is_locked_until_it_goes() -> None:
    """The system counts what is locked, and stops when the array goes."""
    before, array = locked(), allocate(20_000)
    assert lock([array, array[:100], np.zeros(0, np.uint8)]) == ""
    assert locked() - before == 20_480
    del array
    assert locked() == before


@pytest.mark.skipif(sys.platform == "win32", reason="limits are told in other words there")
def test_a_limit_is_said_with_what_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system refuses, the model runs all the same, and a note says how much is locked, and what to do."""
    import resource

    calls: list[int] = []

    class Library:
        @staticmethod
        def mlock(address: object, size: object) -> int:
            calls.append(1)
            return -(len(calls) > 1)

    monkeypatch.setattr(module, "c_library", Library)
    limits = {resource.RLIMIT_MEMLOCK: (65536, 65536)}
    known = resource.getrlimit
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which) or known(which))
    model = puna.load(write_tiny(tmp_path / "m.gguf"), backend="reference", mlock=True)
    (note,) = [note for note in model.notes if "locked" in note]
    assert len(calls) == 2
    assert " are locked in memory: " in note
    assert "this process may lock 64.0 KiB; allow it more before it starts (ulimit -l " in note
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert "free some memory" in lock([allocate(1000)])


def test_a_system_without_locks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no mlock, a line says so."""
    monkeypatch.setattr(module, "c_library", object)
    assert lock([allocate(5000)]) == "none of 8.0 KiB is locked in memory: this system has no mlock"


@pytest.mark.skipif(not STATUS.exists(), reason="this system does not tell what is locked")
@pytest.mark.parametrize("options", [{}, {"repack": False}, {"mmap": False}], ids=str)
def test_a_model_s_memory_is_locked(options: dict[str, bool], tmp_path: Path) -> None:
    """With mlock, weights, packed or mapped, buffers and cache are locked."""
    before = locked()
    model = puna.load(
        write_tiny(tmp_path / "m.gguf"), backend="cpu", threads=1, n_ctx=64, mlock=True, **options
    )
    if any("locked" in note for note in model.notes):
        pytest.skip("this process may not lock so much")
    assert locked() - before >= model.memory["weights"] + model.memory["kv"]
