"""Errors: one line on standard error that says what to change, and the exit status."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from unittest import mock

import pytest
from cli_runs import alphabet, puna
from tiny_model import write_tiny

from puna.cli import main, text

NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system prompt, please') }}{% endif %}x"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return alphabet(tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    result = puna("run", tmp_path / "none.gguf", "-p", "a")
    assert result.status == 2
    assert "none.gguf: there is no such file" in result.error


def test_no_gguf(tmp_path: Path) -> None:
    """A file of another format is named, and nothing is generated."""
    path = tmp_path / "a.gguf"
    path.write_bytes(b"<html>" * 100)
    for command in ("run", "chat", "inspect", "tokenize"):
        result = puna(command, path, stdin=b"a")
        assert (result.status, result.out) == (2, "")
        assert "a.gguf" in result.error


def test_cut_file(model: Path) -> None:
    """A file that is cut short is refused, by the tensor that lacks bytes."""
    model.write_bytes(model.read_bytes()[:-1000])
    result = puna("run", model, "-p", "a")
    assert result.status == 2
    assert "alphabet.gguf" in result.error


def test_unknown_model_name() -> None:
    """An unknown name brings the nearest known ones."""
    result = puna("run", "smolm2:135m", "-p", "a")
    assert result.status == 2
    assert "smolm2:135m" in result.error
    assert "smollm2:135m" in result.error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "no model is named"),
        (["run", "--frob", "1"], "there is no flag --frob"),
        (["chat", "-n", "many"], "'many' is not a whole number"),
        (["-m", "a.gguf", "--frob"], "puna: there is no flag --frob"),
        (["rum", "a.gguf"], "there is no command 'rum'; did you mean puna run?"),
        (["model.gguf"], "there is no command 'model.gguf'; to run a model, write puna run model.gguf"),
        (["list", "x"], "unrecognized arguments: x"),
        (["pull"], "the following arguments are required: NAME"),
    ],
)
def test_wrong_command_lines(words: list[str], message: str) -> None:
    """A wrong command line is one line and status 2, without argparse's usage."""
    result = puna(*words)
    assert (result.status, result.out) == (2, "")
    assert message in result.error
    assert "usage:" not in result.err


def test_prompt_longer_than_the_context(model: Path) -> None:
    """Both numbers are given; nothing is cut off."""
    result = puna("run", model, "-p", "x" * 20, "-c", 16)
    assert (result.status, result.out) == (2, "")
    assert "20 tokens" in result.error
    assert "16" in result.error
    assert "-c" in result.error


def test_empty_prompt(model: Path, tmp_path: Path) -> None:
    """An empty prompt is an error unless the model begins every text with a token."""
    for result in (puna("run", model, "-p", ""), puna("run", model, stdin=b"")):
        assert (result.status, result.error) == (
            2,
            "the prompt is empty and the model adds no token to it; give a prompt",
        )
    assert puna("run", write_tiny(tmp_path / "s.gguf", vocab="spm"), "-p", "", "-n", 2).status == 0


def test_input_that_is_not_utf8(model: Path) -> None:
    """A byte of standard input that is no UTF-8 is named by its place."""
    for words in (["run", model], ["tokenize", model], ["chat", model]):
        result = puna(*words, stdin=b"ab\xffc\n")
        assert result.status == 2
        assert result.error == "standard input: byte 2 (0xff) is not UTF-8; convert the text to UTF-8"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-p", "a", "-f", "b.txt"], "both -p and -f are given"),
        (["-f", "nowhere.txt"], "nowhere.txt: cannot read the file"),
        (["-p", "a", "-ctk", "q1_0"], "no KV cache of type 'q1_0'"),
        (["-p", "a", "--backend", "abacus"], "no backend is called 'abacus'"),
        (["-p", "a", "-r", ""], "a stop string is empty"),
        (["-p", "a", "-l", "9999+1"], "9999"),
        (["-p", "a", "-cnv", "--chat-template", "lama"], "there is no template 'lama'; use chatml"),
        (["-p", "a", "-cnv", "--chat-template", "{{"], "chat template"),
        (["-p", "a", "-cnv", "--chat-template", "{{ raise_exception('not today') }}"], "not today"),
        (["-p", "a", "-cnv", "--chat-template-file", "no.jinja"], "no.jinja: cannot read the file"),
        (["-cnv", "--chat-template", "chatml", "--chat-template-file", "x"], "both --chat-template and"),
        (["-p", "a", "-sys", "a", "-sysf", "b"], "both -sys and -sysf are given"),
        (
            ["-p", "a", "-sys", "a", "-no-cnv"],
            "-sys: without a conversation it means nothing; leave out -no-cnv",
        ),
        (["-p", "a", "-sys", "no", "--chat-template", NO_SYSTEM], "no system prompt, please"),
    ],
)
def test_requests_that_cannot_be_honoured(model: Path, words: list[str], message: str) -> None:
    """Each is refused before anything is generated."""
    result = puna("run", model, *words)
    assert (result.status, result.out) == (2, "")
    assert message in result.error


def test_unsupported_architecture(tmp_path: Path) -> None:
    """An architecture that Puna does not have is named, with the nearest."""
    model = write_tiny(tmp_path / "a.gguf", metadata={"general.architecture": "lama"})
    result = puna("run", model, "-p", "a")
    assert result.status == 2
    assert "'lama'" in result.error
    assert "llama" in result.error


def test_no_vocabulary(tmp_path: Path) -> None:
    """A model without a vocabulary is refused where text is asked for."""
    result = puna("run", write_tiny(tmp_path / "a.gguf", vocab="none"), "-p", "a")
    assert result.status == 2
    assert "tokenizer" in result.error


def test_errors_cannot_steer_a_terminal(tmp_path: Path) -> None:
    """Text out of a file comes escaped, on one line."""
    model = write_tiny(tmp_path / "a.gguf", metadata={"general.architecture": "x\x1b[2J\ny"})
    assert "\x1b" not in puna("run", model, "-p", "a").error


def test_debug_shows_where(tmp_path: Path) -> None:
    """--debug brings the traceback, before the same line; without it there is none."""
    words = ("run", tmp_path / "none.gguf", "-p", "a")
    plain, debug = puna(*words), puna(*words, "--debug")
    assert "Traceback" not in plain.err
    assert "Traceback" in debug.err
    assert debug.err.splitlines()[-1] == plain.err.splitlines()[-1]
    assert debug.status == plain.status == 2


def test_debug_before_the_command_and_as_a_value(model: Path) -> None:
    """--debug may come before the command; in the place of a value it is the value."""
    assert "Traceback" in puna("--debug", "run", "none.gguf").err
    assert "Traceback" in puna("--debug", "-m", "none.gguf").err
    assert puna("--debug").out == puna("--help").out
    assert puna("run", model, "-p", "--debug", "-n", 0).out == "--debug\n"
    pieces = puna("tokenize", "--json", "--", model, "--debug").out
    assert "".join(entry["piece"] for entry in json.loads(pieces)) == "--debug"


def test_output_that_cannot_be_written() -> None:
    """An error of the system is one line with its reason, not a bug."""
    with mock.patch.object(main, "command", side_effect=OSError(errno.ENOSPC, "No space left on device")):
        result = puna("list")
    assert result.status == 2
    assert result.error == (
        "cannot read or write standard input or output: No space left on device; check where it leads"
    )


def test_the_model_is_checked_before_the_text_is_read(model: Path) -> None:
    """A name that nothing can have is said before any input is read."""
    for command in ("run", "chat", "tokenize"):
        assert "there is no model of this name" in puna(command, "zzzz", "-f", "nowhere.txt").error


def test_texts_have_a_limit(model: Path, tmp_path: Path) -> None:
    """More text than anyone can mean is refused, from standard input and from files, without reading on."""
    file = tmp_path / "long.txt"
    file.write_bytes(b"a" * 101)
    with mock.patch.object(text, "MOST", 100):
        for words in (["run", model], ["tokenize", model], ["chat", model]):
            result = puna(*words, stdin=b"a" * 101)
            assert (result.status, result.error) == (2, "standard input: more than 100 B of text; give less")
        assert "long.txt: more than 100 B of text; give less" in puna("run", model, "-f", file).error
        assert puna("tokenize", model, stdin=b"a" * 100).status == 0


def test_bugs_ask_to_be_reported() -> None:
    """An exception that no one expected is one line that asks for a report, and status 1."""
    with mock.patch.object(main, "command", side_effect=ZeroDivisionError("division\nby zero")):
        plain, debug = puna("list"), puna("list", "--debug")
    assert plain.status == 1
    assert plain.error.startswith("unexpected ZeroDivisionError: division by zero; this is a bug in Puna")
    assert "Traceback" not in plain.err
    assert "Traceback" in debug.err


def test_too_little_memory() -> None:
    """Running out of memory is no bug: the line says what to lower."""
    with mock.patch.object(main, "command", side_effect=MemoryError):
        result = puna("list")
    assert (result.status, result.error) == (
        2,
        "out of memory; lower the context (-c), or take a smaller model",
    )


def test_interrupt_before_the_text(model: Path) -> None:
    """An interrupt while a model loads ends quietly, with status 130."""
    with mock.patch.object(main, "command", side_effect=KeyboardInterrupt):
        result = puna("run", model)
    assert (result.status, result.out, result.err) == (130, "", "")
