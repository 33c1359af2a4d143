"""`puna pull`, `puna list`, models by name, and the bars that show how far a fetch is."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from unittest import mock

import pytest
from cli_runs import Terminal, alphabet, puna
from tiny_model import write_tiny

from puna import store
from puna.cli.main import COMMANDS
from puna.cli.report import Bars
from puna.errors import StoreError


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of models."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("PUNA_MODELS", str(folder))
    return folder


def test_list_shows_what_is_here_and_what_can_be_fetched(models: Path) -> None:
    """Files of the folder with name, size, source and path; then every name of the catalogue."""
    empty = puna("list").out
    assert f"none in {models}" in empty
    assert all(f"  {model.name} " in empty for model in store.catalogue())
    path = write_tiny(models / "mine.gguf")
    row = next(line for line in puna("list").out.splitlines() if line.endswith(str(path)))
    assert row.split() == [str(path), "439.2", "KiB", "file", str(path)]


def test_list_shows_damaged_files(models: Path) -> None:
    """A file of the catalogue that was cut short is listed as damaged, and can still be fetched."""
    gemma = store.catalogue()[1]
    (models / gemma.file).write_bytes(b"GGUF")
    text = puna("list").out
    assert f"  {gemma.name}  4 of {gemma.size} bytes  {models / gemma.file}\n" in text
    assert "puna pull NAME fetches it anew" in text
    found = json.loads(puna("list", "--json").out)
    assert [(entry["name"], entry["bytes"]) for entry in found["damaged"]] == [(gemma.name, 4)]
    assert gemma.name in {entry["name"] for entry in found["there"]}


def test_list_says_what_is_no_chat_model(models: Path) -> None:
    """A base model is called one, whether it is here or not."""
    gemma = store.catalogue()[1]
    assert "a base model" in puna("list").out
    (models / gemma.file).touch()
    os.truncate(models / gemma.file, gemma.size)
    row = next(line for line in puna("list").out.splitlines() if line.endswith(gemma.file))
    assert "a base model" in row


def test_list_as_json(models: Path) -> None:
    """--json holds both lists."""
    write_tiny(models / "mine.gguf")
    found = json.loads(puna("list", "--json").out)
    assert found["folder"] == str(models)
    assert [entry["path"] for entry in found["here"]] == [str(models / "mine.gguf")]
    assert {entry["name"] for entry in found["there"]} == {model.name for model in store.catalogue()}


def test_pull_prints_the_path(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path goes to standard output, and nothing else does."""
    path = alphabet(models)
    assert puna("pull", path).out == f"{path}\n"

    def fail(*_: object) -> Path:
        raise StoreError("no network", where="smollm2:135m", fix="try again")

    monkeypatch.setattr(store, "pull", fail)
    result = puna("pull", "smollm2:135m")
    assert (result.status, result.out, result.error) == (2, "", "smollm2:135m: no network; try again")


def test_names_are_resolved_everywhere(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """run, chat, inspect and tokenize take a name where they take a file."""
    path = alphabet(models)
    monkeypatch.setattr(store, "resolve", lambda name, settings, progress=None: {"tiny:1m": path}[name])
    monkeypatch.setattr(store, "check", {"tiny:1m": None}.__getitem__)
    assert puna("run", "tiny:1m", "-p", "w").out == "wxyz\n"
    assert puna("-m", "tiny:1m", "-p", "w").out == "wxyz\n"
    assert puna("chat", "tiny:1m", "-n", 2, stdin=b"hi\n").out == "ab\n"
    assert puna("inspect", "tiny:1m").out.startswith(str(path))
    assert puna("tokenize", "tiny:1m", "a", "--ids").out == "[64]\n"


def test_loading_shows_a_bar_at_a_terminal_only(models: Path) -> None:
    """Where standard error is a terminal a bar comes and goes; elsewhere nothing is drawn."""
    path = alphabet(models)
    assert "loading " in puna("run", path, "-p", "w", tty="err").err
    assert "loading " not in puna("run", path, "-p", "w").err


def test_bars_end_with_their_block() -> None:
    """Leaving the bars in the middle of a stage leaves none running."""
    with mock.patch.object(sys, "stderr", Terminal(io.BytesIO())), Bars() as bars:
        bars.start("label [red]", 10)
        bars.advance(5)
        running = bars.bars
        assert running.tasks[0].completed == 5
    assert running.finished is False
    assert not running.live.is_started


def test_general_help_and_version() -> None:
    """`puna`, -h and --help list every command; --version says which Puna this is."""
    texts = {puna().out, puna("-h").out, puna("--help").out}
    (text,) = texts
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert puna("--version").out.startswith("puna 0.")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(name: str) -> None:
    """`puna COMMAND --help` prints the command's own usage and ends with status 0."""
    result = puna(name, "--help")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith(f"usage: puna {name}")
