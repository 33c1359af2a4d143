"""`--prompt-cache` and `--context-shift`: texts that go on another time, and beyond the context."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from cli_runs import ENDLESS, alphabet, puna
from tiny_model import write_tiny

import puna as package
from puna.cache import saved
from puna.cli import options
from puna.cli.conversation import Conversation
from puna.gguf import output

SAID = "the context of 16 was full 5 times: 40 tokens of the text dropped"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return alphabet(tmp_path, follow=ENDLESS)


def cached(err: str) -> int:
    """Tokens of the prompt that came from the cache."""
    found = re.search(r"\((\d+) of them from the cache\)", err)
    return int(found[1]) if found else 0


def test_a_prompt_is_kept(model: Path, tmp_path: Path) -> None:
    """The second run takes the computed prompt from the file, and one that begins the same takes that much."""
    file = tmp_path / "kept"
    words = ("run", model, "-n", 3, "--prompt-cache", file)
    first, second = (puna(*words, "-p", "from abc") for _ in range(2))
    assert first.out == second.out == "from abcdef\n"
    assert (cached(first.err), cached(second.err)) == (0, 6)
    assert f"kept 7 tokens in {file}" in first.err
    assert "tokens in" not in second.err
    third = puna(*words, "-p", "from a is")
    assert cached(third.err) == 5
    assert "kept 8 tokens" in third.err


def test_a_text_goes_on(model: Path, tmp_path: Path) -> None:
    """With --prompt-cache-all a run without a text shows what is kept and goes on, up to the last token shown."""
    words = ("run", model, "-n", 3, "--prompt-cache", tmp_path / "kept", "--prompt-cache-all")
    assert puna(*words, "-p", "abc").out == "abcdef\n"
    again = puna(*words)
    assert again.out == "abcdefghi\n"
    assert cached(again.err) == 5
    assert puna(*words, "--no-display-prompt").out == "jkl\n"
    assert puna(*words, "-p", "abcdefghijklm").out == "abcdefghijklmnop\n"


def test_a_file_that_is_only_read(model: Path, tmp_path: Path) -> None:
    """--prompt-cache-ro uses the file and leaves it as it is, and makes none."""
    file = tmp_path / "kept"
    words = ("run", model, "-n", 3, "--prompt-cache", file)
    assert puna(*words, "-p", "abc", "--prompt-cache-ro").status == 0
    assert not file.exists()
    puna(*words, "-p", "abc")
    before = file.read_bytes()
    result = puna(*words, "-p", "abcdef", "--prompt-cache-ro", "--prompt-cache-all")
    assert (result.out, cached(result.err)) == ("abcdefghi\n", 3)
    assert file.read_bytes() == before


def test_an_empty_file_is_a_new_one(model: Path, tmp_path: Path) -> None:
    """A file without a byte, as mktemp makes it, is filled."""
    file = tmp_path / "kept"
    file.touch()
    assert puna("run", model, "-p", "abc", "-n", 1, "--prompt-cache", file).status == 0
    assert file.stat().st_size > 0


def test_what_cannot_be_taken_up(model: Path, tmp_path: Path) -> None:
    """A file of another model, a damaged one, and one that is none are one line each, and stay as they are."""
    file = tmp_path / "kept"
    puna("run", model, "-p", "abc", "-n", 1, "--prompt-cache", file)
    other = write_tiny(tmp_path / "other.gguf", seed=3)
    assert "another model" in puna("run", other, "-p", "abc", "--prompt-cache", file).error
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    result = puna("run", model, "-p", "abc", "--prompt-cache", file)
    assert (result.status, file.read_bytes()) == (2, data[:-1])
    assert "belong to 3 tokens" in result.error
    assert "no saved sequence" in puna("run", model, "-p", "abc", "--prompt-cache", other).error
    assert "folder" in puna("run", model, "-p", "abc", "--prompt-cache", tmp_path).error


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none/x", "there is no such folder; make it first"),
        ("fifo", "this is a device or a pipe"),
        ("/dev/full", "this is a device or a pipe"),
        ("alphabet.gguf", "this is no saved sequence; name another file"),
        (".", "this is a folder"),
    ],
)
@pytest.mark.parametrize("words", [[], ["--prompt-cache-ro"]])
def test_a_file_that_cannot_be_is_refused_before_the_model_is_loaded(
    name: str, told: str, words: list[str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is loaded and computed for a file that cannot be written; where none is to be, one may be missing."""
    if name in {"fifo", "/dev/full"} and not hasattr(os, "mkfifo"):
        pytest.skip("this system has no such files")
    if name == "fifo":
        os.mkfifo(model.parent / "fifo")
    loads: list[object] = []
    monkeypatch.setattr(options, "load", lambda *_: loads.append(1))
    path = model.parent / name
    if words and name == "none/x":
        puna("run", model, "-p", "abc", "--prompt-cache", path, *words)
        assert loads
        return
    result = puna("run", model, "-p", "abc", "--prompt-cache", path, *words)
    assert (result.status, result.out, loads) == (2, "", [])
    assert told in result.error


def test_what_a_killed_run_left_goes(model: Path) -> None:
    """A note says so; what others write at the moment, and what has other names, stays."""
    left, locked, other = (
        model.parent / f".{name}.0123456{n}.part" for n, name in enumerate(["k", "k", "j"])
    )
    for part in (left, locked, other):
        part.touch()
    with locked.open("rb") as file:
        assert output.lock(file.fileno())
        result = puna("run", model, "-p", "abc", "-n", 1, "--prompt-cache", model.parent / "k")
    assert "note: deleted 1 part of k that broken-off runs left: .k.01234560.part" in result.err
    assert result.status == 0
    assert sorted(model.parent.glob(".*")) == sorted([locked, other])


def test_a_full_disk_costs_no_text(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text comes whole, then one line says that it could not be kept, and why; nothing is left of the file."""

    def write(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(saved, "write", write)
    result = puna("run", model, "-p", "abc", "-n", 3, "--prompt-cache", model.parent / "kept")
    assert (result.status, result.out) == (2, "abcdef\n")
    assert "kept: cannot write the file: No space left on device; free some space" in result.error
    assert [path.name for path in model.parent.iterdir()] == [model.name]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--prompt-cache-all"], "there is no file"),
        (["--prompt-cache-ro"], "there is no file"),
        (["--prompt-cache", "f", "-cnv"], "a conversation is kept by /save and /load"),
        (["--prompt-cache", "f", "-sys", "x"], "a conversation is kept by /save and /load"),
        (["--keep", "4"], "nothing is dropped, so all is kept; give --context-shift"),
        (["--context-shift", "--keep", "-2"], "-2 is not between -1"),
    ],
)
def test_options_that_do_not_go_together(model: Path, words: list[str], told: str) -> None:
    """What cannot be honoured is refused before the model is loaded."""
    result = puna("run", model, "-p", "a", *words)
    assert result.status == 2
    assert told in result.error


def test_a_text_beyond_the_context(model: Path) -> None:
    """With --context-shift the text goes on, and standard error says once what was dropped."""
    result = puna("run", model, "-p", "a", "-n", 52, "-c", 16, "--context-shift")
    assert result.out == "abcdefghijklmnopqrstuvwxyz" * 2 + "a\n"
    assert result.err.splitlines()[-2:] == [SAID, "stopped at the limit of 52 tokens (-n)"]


def test_minus_two_is_until_the_context_is_full(model: Path) -> None:
    """-n -2 ends where the context does, --context-shift or not."""
    result = puna("run", model, "-p", "a", "-n", -2, "-c", 16, "--context-shift")
    assert result.out == "abcdefghijklmnopq\n"


def test_a_conversation_beyond_the_context(tmp_path: Path) -> None:
    """A conversation that would end at the limit of its context goes on with --context-shift, and says so."""
    model = alphabet(tmp_path)
    lines = b"one\ntwo\nthree\n/tokens\n"
    words = ("chat", model, "-c", 80, "-sys", "Be so")
    assert "start over with /clear" in puna(*words, stdin=lines).error
    result = puna(*words, "--context-shift", stdin=lines)
    assert (result.status, result.out) == (0, "abcdefghijklmnopqrstuvwxyz\n" * 3)
    assert result.err.count("the context of 80 was full") == 2


def test_what_a_conversation_keeps(tmp_path: Path) -> None:
    """To keep -1 is to keep what comes before the first message; of earlier turns the cache has what is left."""
    path = alphabet(tmp_path)
    for keep, kept in ((0, ""), (-1, "<|im_start|>system\nBe so<|im_end|>\n<|im_start|>user\n")):
        model = package.load(path, backend="reference", n_ctx=96)
        shift = {"context_shift": True, "keep": keep}
        conversation = Conversation(model, system="Be so", sampling={"temp": 0}, shift=shift)
        for text in ("one", "two", "three"):
            assert "".join(conversation.ask(text)) == "abcdefghijklmnopqrstuvwxyz"
        assert conversation.last is not None
        assert conversation.last.timings.dropped > 0
        held = model.detokenize(conversation.sequence.tokens)
        assert held.startswith(kept)
        assert held.startswith("<|im_start|>system") == bool(kept)
        assert held.endswith("three<|im_end|>\n<|im_start|>assistant\nabcdefghijklmnopqrstuvwxyz")
