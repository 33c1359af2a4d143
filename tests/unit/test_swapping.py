"""Where paused texts wait: in files that leave nothing behind, or nowhere; a file that fails costs no text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cache_accounts import nothing_held
from endless_models import letters, load_endless

import puna
from puna import swapping
from puna.cache import saved
from puna.errors import RequestError
from puna.scheduler import Scheduler, Stream


@pytest.fixture
def endless(tmp_path: Path) -> puna.Model:
    return load_endless(tmp_path)


def pressed(scheduler: Scheduler) -> list[Stream]:
    """Texts that do not fit beside each other."""
    return [scheduler.stream(p, 200, temp=0) for p in "abcd"]


@pytest.mark.parametrize("at", ["write", "flush"])
def test_a_full_disk(at: str, endless: puna.Model) -> None:
    """Where no file can be written, paused texts are computed again, which is said once."""
    full = OSError(28, "No space left on device")
    fails = mock.patch.object(saved, "write", side_effect=full)
    if at == "flush":
        fails = mock.patch("tempfile.TemporaryFile", return_value=mock.Mock(**{"flush.side_effect": full}))
    with endless.scheduler(swap="always") as scheduler, fails:
        streams = pressed(scheduler)
        assert ["".join(s) for s in streams] == [letters(200, p) for p in "abcd"]
        report = scheduler.report
    assert report.pauses > 1
    assert (report.swapped, len(report.notes)) == (0, 1)
    assert "No space left on device; paused texts are computed again" in report.notes[0]
    nothing_held(endless)


def test_a_damaged_file(endless: puna.Model) -> None:
    """A file that comes back otherwise is noticed, and its text computed again."""

    with endless.scheduler(swap="always") as scheduler:
        leave = scheduler.swap.leave

        def spoiled(*given: Any) -> swapping.Swapped | None:
            swapped = leave(*given)
            assert swapped is not None
            swapped.file.seek(-50, 2)
            swapped.file.write(b"x")
            return swapped

        with mock.patch.object(scheduler.swap, "leave", spoiled):
            assert ["".join(s) for s in pressed(scheduler)] == [letters(200, p) for p in "abcd"]
        assert "the file is damaged" in scheduler.report.notes[0]
        assert scheduler.report.recomputed > 0
    nothing_held(endless)


def test_files_are_gone(endless: puna.Model, tmp_path: Path) -> None:
    """What is swapped has no name in the folder, and closing frees it while texts are paused."""
    folder = tmp_path / "swapped"
    folder.mkdir()
    with endless.scheduler(swap="always", folder=folder) as scheduler:
        streams = pressed(scheduler)
        while scheduler.report.paused == 0:
            next(streams[0])
        (paused,) = (s for s in streams if s.state == "paused")
        file = paused.request.swapped
        assert file is not None
        assert os.name == "nt" or list(folder.iterdir()) == []
    assert file.file.closed
    assert list(folder.iterdir()) == []
    with pytest.raises(RequestError, match="this is no folder"):
        endless.scheduler(folder=tmp_path / "none")


def test_what_is_cheaper(endless: puna.Model) -> None:
    """With "auto", a text waits in a file where its bytes are quicker to move than its tokens to compute."""
    swap = swapping.Swap(endless, "auto", None)
    sequence = endless.cache.open()
    endless.step(sequence, range(100))
    seconds = 2 * saved.nbytes(endless.cache, sequence) / swap.speed
    assert swap.pays(sequence, 99 / seconds)
    assert not swap.pays(sequence, 101 / seconds)
    copy = endless.cache.copy(sequence)
    endless.step(copy, [1])  # the full page stays, whoever goes
    assert not swap.pays(sequence, 99 / seconds)
    assert swap.pays(sequence, 35 / seconds)
    endless.cache.close(copy)
