"""Where a file may be written, and what a killed process leaves of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from puna.errors import RequestError
from puna.gguf.output import clear_left, free_target, partial_path, replacing

WRITE = """
import sys
from pathlib import Path
from puna.gguf.output import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_links_are_followed(tmp_path: Path) -> None:
    """A link stays, and the file that it leads to is replaced."""
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_pipes_stay(tmp_path: Path) -> None:
    """What is no file is not replaced by one."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RequestError, match="this is a device or a pipe"), replacing(tmp_path / "pipe"):
        pass
    assert (tmp_path / "pipe").is_fifo()


def test_sources_are_no_targets(tmp_path: Path) -> None:
    """By whatever name, also one of another link to the same file."""
    (tmp_path / "in").write_bytes(b"")
    (tmp_path / "hard").hardlink_to(tmp_path / "in")
    with pytest.raises(RequestError, match="this is the file to read"):
        free_target(tmp_path / "hard", [tmp_path / "none", tmp_path / "in"])
    assert free_target(tmp_path / "out", [tmp_path / "none", tmp_path / "in"]) == (tmp_path / "out").resolve()


def test_room_is_asked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a disk has no room for what is known to come, nothing is begun."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage())
    words = r"2\.0 KiB are needed and 1\.0 KiB are free; free some space"
    with pytest.raises(RequestError, match=words), replacing(tmp_path / "out", 2048):
        pass
    assert not list(tmp_path.iterdir())


class Usage:
    free = 1024


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "free some space"), (errno.EFBIG, "raise the limit of a file's size")],
)
def test_what_fails_in_the_middle(tmp_path: Path, number: int, advice: str) -> None:
    """The error names the target, not the part, and what to change."""
    with pytest.raises(RequestError, match=advice) as error, replacing(tmp_path / "out"):
        raise OSError(number, os.strerror(number), str(tmp_path / "part"))
    assert str(error.value).startswith(f"{tmp_path / 'out'}: cannot write the file: {os.strerror(number)}; ")
    assert "part" not in str(error.value).removeprefix(str(tmp_path))


def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    """Parts are named after the file, and go when nobody writes them any more; no others do."""
    path = tmp_path / "out.gguf"
    others = (
        ".out.gguf.part",
        ".out.gguf.0123abcd.part.gguf",
        ".out2gguf.0123abcd.part",
        "out.gguf.0123abcd.part",
    )
    for name in others:
        (tmp_path / name).write_bytes(b"")
    argv = [sys.executable, "-c", WRITE, str(path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes) as process:
        assert process.stdout
        assert process.stdout.readline().strip() == b"begun"
        (part,) = tmp_path.glob(".out.gguf.????????.part")
        assert clear_left(path) == []
        process.kill()
    folder = partial_path(path, "parts")
    folder.mkdir()
    (folder / "x").write_bytes(b"")
    assert sorted(clear_left(path)) == sorted([part.name, folder.name])
    assert sorted(other.name for other in tmp_path.iterdir()) == sorted(others)


def test_long_names(tmp_path: Path) -> None:
    """The part of a file whose name is as long as can be has a shorter one."""
    path = tmp_path / ("\u00e9" * 127)
    with replacing(path) as file:
        file.write(b"x")
    assert path.read_bytes() == b"x"
