"""`puna imatrix`: the file it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import puna
from tiny_model import LAYERS, write_tiny

from puna.gguf.imatrix import Imatrix, read_imatrix, write_imatrix

TEXT = "The cat and the dog ran to the end of the garden. " * 4


@pytest.fixture
def words(tmp_path: Path) -> list[object]:
    """A command that does a little work."""
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    model = write_tiny(tmp_path / "a.gguf")
    return [
        "imatrix",
        model,
        "-f",
        tmp_path / "text.txt",
        "-o",
        tmp_path / "im.gguf",
        "-c",
        40,
        "--chunks",
        2,
    ]


def test_it_writes_the_matrix(words: list[object], tmp_path: Path) -> None:
    """All matrices of the layers, where it comes from, and the perplexity on the way."""
    result = puna(*words)
    assert result.status == 0, result.err
    assert result.out.startswith("[1]")
    assert result.out.count("[") == 2
    found = read_imatrix(tmp_path / "im.gguf")
    assert len(found) == 7 * LAYERS
    assert (found.chunks, found.chunk_size) == (2, 40)
    assert found.datasets == (str(tmp_path / "text.txt"),)
    assert found["blk.0.ffn_up.weight"].counts.tolist() == [80]
    assert f"{7 * LAYERS} tensors in {tmp_path / 'im.gguf'}" in result.err
    assert "tokens/s" in result.err


def test_the_output_matrix_comes_when_asked_for(words: list[object], tmp_path: Path) -> None:
    """--process-output."""
    assert puna(*words, "--process-output").status == 0
    assert "output.weight" in read_imatrix(tmp_path / "im.gguf")


def test_it_is_written_on_the_way(
    words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every so many windows and at the end, each time whole."""
    seen: list[int] = []

    def write(path: Path, imatrix: object) -> None:
        seen.append(imatrix.chunks)  # type: ignore[attr-defined]

    monkeypatch.setattr("puna.gguf.imatrix.write_imatrix", write)
    assert puna(*words[:-1], -1, "--output-frequency", 2).status == 0
    assert seen == [2, 3]


def test_interrupted(words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is answered with how many windows the file holds."""
    writes = iter([write_imatrix, None])

    def write(path: Path, imatrix: Imatrix) -> None:
        if (real := next(writes)) is None:
            raise KeyboardInterrupt
        real(path, imatrix)

    monkeypatch.setattr("puna.gguf.imatrix.write_imatrix", write)
    result = puna(*words, "-ofreq", 1)
    assert result.status == 130
    assert result.err.splitlines()[-1] == f"interrupted; {tmp_path / 'im.gguf'} holds 1 window"


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (("--backend", "cpu"), "importance matrices come from the reference backend, and this is cpu"),
        (("-c", "500"), "tokens, and one window takes 500"),
        (("-c", "2"), "windows of 2 tokens are too short"),
        (("-o", "none/im.gguf"), "none: there is no such folder; make it first"),
        (("-o", "a.gguf"), "a.gguf: this is the file to read; write to another file"),
        (("-o", "text.txt"), "text.txt: this is the file to read; write to another file"),
        (("-o", ""), "an empty path names no file"),
        (("-f", "none.txt"), "none.txt: cannot read the file"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    more: tuple[str, ...],
    error: str,
    words: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit status 2, and nothing on standard output; before the model is loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("puna.load", None) if more[0] in {"-o", "--backend"} else None
    result = puna(*words, *more)
    assert result.status == 2
    assert error in result.error
    assert not result.out
