"""What a process has in memory, as the system counts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.backends.cpu.memory import allocate
from puna.gguf import GGUFFile, write
from puna.measure import resident as module
from puna.quants import by_name

SIZE = 8 << 20


@pytest.mark.parametrize("told", ["exactly", "otherwise"])
def test_memory_counts_once_it_is_touched(told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pages that were written to are resident, others are not, whichever way the system is asked."""
    if told == "otherwise":
        monkeypatch.setattr(module, "SELF", tmp_path)
    block = allocate(SIZE)
    before = module.resident()
    block[: SIZE // 2] = 1
    assert abs(module.resident() - before - SIZE // 2) < 1 << 20
    assert module.mapped(tmp_path) == 0


@pytest.mark.skipif(not module.SELF.exists(), reason="this system does not tell what is mapped")
def test_parts_of_a_mapped_file_are_told_apart(tmp_path: Path) -> None:
    """What was read of a mapped file counts, until it is let go."""
    path, data = tmp_path / "a file.gguf", allocate(SIZE)
    write(path, {"general.architecture": "llama"}, [("x", by_name("I8"), (SIZE,), data)])
    with GGUFFile.open(path) as file:
        before = module.mapped(path)
        assert not file.data("x").any()
        assert module.mapped(path) - before > SIZE // 2
        file.drop("x")
        assert module.mapped(path) < 1 << 20
