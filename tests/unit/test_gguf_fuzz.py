"""Damaged at random, a file either opens and can be read whole, or is refused in one line; memory stays bounded."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_files import array, gguf, key, row, text, write_sample

from puna.errors import PunaError
from puna.gguf import GGUFFile

EXTREMES = (0, 1, 2, 3, 7, 8, 9, 12, 13, 31, 32, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32)
EXTREMES += (2**40, 2**53, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)


def flip(raw: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 4)):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def truncate(raw: bytearray, rng: random.Random) -> None:
    del raw[rng.randrange(len(raw)) :]


def insert(raw: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(raw))
    raw[at:at] = rng.randbytes(rng.randint(1, 40))


def delete(raw: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(raw))
    del raw[at : at + rng.randint(1, 40)]


def splice(raw: bytearray, rng: random.Random) -> None:
    """Another stretch of the file in the place of this one."""
    start, end, at = (rng.randrange(len(raw)) for _ in range(3))
    length = rng.randint(0, 200)
    raw[at : at + length] = raw[start : min(start + length, end + length)]


def extreme(raw: bytearray, rng: random.Random) -> None:
    """A number that is likely to be at or over a limit, of any width, anywhere."""
    width, letter = rng.choice(((1, "B"), (2, "H"), (4, "I"), (8, "Q")))
    at = rng.randrange(len(raw))
    raw[at : at + width] = struct.pack(rng.choice("<>") + letter, rng.choice(EXTREMES) % (1 << 8 * width))


MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip,
    truncate,
    insert,
    delete,
    splice,
    extreme,
)


def small_file(path: Path) -> Path:
    """Few keys, so that most damage hits a field that matters."""
    keys = [
        key("general.alignment", 4, struct.pack("<I", 64)),
        key("words", 9, array(8, 3, text("a") + text("") + text("bc"))),
        key("deep", 9, array(9, 2, array(9, 1, array(7, 2, b"\0\1")) + array(4, 1, bytes(4)))),
        key("split.count", 2, struct.pack("<H", 1)),
    ]
    rows = [row("a", (32, 2), 2), row("b", (3, 2, 2), 0, 64), row("c", (2, 1, 1, 2), 1, 128)]
    path.write_bytes(gguf(keys, rows, bytes(range(136)), alignment=64))
    return path


SUBJECTS: dict[str, tuple[Callable[[Path], Path], int]] = {
    "small": (small_file, 2000),
    "every type": (write_sample, 500),
    "big-endian": (lambda path: write_sample(path, byteorder="big"), 500),
}


def use(path: Path, mmap: bool) -> str:
    """Open a file and read all of it; what came of it."""
    try:
        with GGUFFile.open(path, mmap=mmap) as file:
            for value in dict(file.metadata).values():
                repr(value)
            for name, tensor in file.tensors.items():
                assert file.data(name).nbytes == tensor.nbytes
                int(file.data(name).sum())
    except PunaError as error:
        line = str(error)
        return (
            type(error).__name__
            if line.isprintable() and len(line) < 600
            else f"error of many lines: {line!r}"
        )
    return "opened"


@pytest.mark.parametrize("subject", SUBJECTS)
def test_random_damage(tmp_path: Path, subject: str) -> None:
    """Thousands of damaged files: opened or refused, never another outcome, and never much memory."""
    make, rounds = SUBJECTS[subject]
    path = make(tmp_path / "m.gguf")
    assert use(path, mmap=True) == use(path, mmap=False) == "opened"
    sound, rng = path.read_bytes(), random.Random(subject)
    outcomes: Counter[Any] = Counter()
    tracemalloc.start()
    for number in range(rounds):
        raw = bytearray(sound)
        for mutate in rng.choices(MUTATIONS, k=rng.choice((1, 1, 1, 2, 5))):
            if raw:
                mutate(raw, rng)
        path.write_bytes(raw)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        outcomes[use(path, mmap=number % 2 == 0)] += 1
        assert tracemalloc.get_traced_memory()[1] - before < (1 << 18) + 20 * len(raw)
    tracemalloc.stop()
    assert set(outcomes) <= {"opened", "FormatError", "ModelError"}, outcomes
    assert outcomes["opened"] > rounds // 50
    assert outcomes["FormatError"] > rounds // 3
