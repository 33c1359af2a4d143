"""`puna perplexity`: what it prints, what it saves, and what it refuses."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from cli_runs import alphabet, puna
from tiny_model import write_tiny

LETTERS = string.ascii_lowercase
SHUFFLED = "qmzxwvkjhgfdbplonytrusicea"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return alphabet(tmp_path)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(LETTERS * 4 + "\n", encoding="utf-8")
    return tmp_path / "text.txt"


def test_it_runs_and_ends_with_an_estimate(model: Path, text: Path) -> None:
    """The estimate so far after each window, as llama-perplexity prints it; all else on standard error."""
    result = puna("perplexity", model, "-f", text, "-c", 26)
    assert result.status == 0, result.err
    running, final = result.out.splitlines()
    parts = running.rstrip(",").split(",")
    assert [part.split("]")[0] for part in parts] == ["[1", "[2", "[3", "[4"]
    value, error = final.removeprefix("Final estimate: PPL = ").split(" +/- ")
    assert value == parts[-1].split("]")[1]
    assert 1 <= float(value) < 1.05
    assert 0 <= float(error) < 0.1
    assert "4 windows of 26 tokens" in result.err
    assert "104 tokens, " in result.err


def test_a_text_may_be_piped(model: Path) -> None:
    """-f - reads standard input; --chunks takes fewer windows; a stride begins them closer together."""
    result = puna("perplexity", model, "-f", "-", "-c", 26, "--chunks", 1, stdin=LETTERS.encode())
    assert result.out.startswith("[1]1.0")
    result = puna("perplexity", model, "-f", "-", "-c", 20, "--ppl-stride", 4, stdin=LETTERS.encode() * 2)
    assert result.out.count("[") == 8
    assert "8 windows of 22 tokens" in result.err


def test_logits_are_saved_and_compared_with(model: Path, text: Path, tmp_path: Path) -> None:
    """A model does not diverge from its own logits, but another does; the windows come from the file."""
    base = tmp_path / "base.kld"
    saved = puna("perplexity", model, "-f", text, "-c", 26, "--save-all-logits", base)
    assert saved.out.startswith("[1]")
    assert f"the logits go to {base}: " in saved.err
    words = ("perplexity", "--kl-divergence", "--kl-divergence-base", base)
    same = puna(*words, model, "-f", text)
    assert same.status == 0, same.err
    assert "Same top p: 100.000 ±  0.000 %" in same.out
    rows = [line for line in same.out.splitlines() if line.endswith(" %") and line[:4].strip().isdigit()]
    assert len(rows) == 4
    other = puna(*words, write_tiny(tmp_path / "other.gguf"), "--chunks", 2)
    assert other.status == 0, other.err
    figures = dict(line.split(":", 1) for line in other.out.splitlines() if ":" in line)
    assert float(figures["Mean    KLD"].split()[0]) > 0.5
    assert float(figures["Maximum KLD"]) >= float(figures["99.9%   KLD"]) >= float(figures["Median  KLD"])
    assert set(figures) > {"Mean PPL(Q)                   ", "RMS Δp    ", "Same top p", "75.0%   Δp"}


def test_a_base_is_of_one_text_and_vocabulary(model: Path, text: Path, tmp_path: Path) -> None:
    """Another text, window or vocabulary is refused in one line that says what is what."""
    base, other = tmp_path / "base.kld", tmp_path / "other.txt"
    assert puna("perplexity", model, "-f", text, "-c", 26, "--save-all-logits", base).status == 0
    other.write_text(SHUFFLED * 4, encoding="utf-8")
    words = ("perplexity", "--kl-divergence", "--save-all-logits", base)
    assert "the base is of another text" in puna(*words, model, "-f", other).error
    assert "windows of 26 tokens, not 30" in puna(*words, model, "-c", 30).error
    assert "the windows are those of the base" in puna(*words, model, "--ppl-stride", 4).error
    foreign = write_tiny(tmp_path / "spm.gguf", vocab="spm")
    assert "tokens, and this one has" in puna(*words, foreign).error
    base.write_bytes(base.read_bytes()[:-2])
    assert "its header speaks of" in puna(*words, model).error


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "no text is given; name a file with -f"),
        (("-f", "none.txt"), "none.txt: cannot read the file"),
        (("-f", "-"), "-: the text is empty"),
        (
            ("-f", "short.txt"),
            "the text has 104 tokens, and one window takes 512; give a longer text, or lower -c",
        ),
        (("-f", "short.txt", "-c", "4"), "windows of 4 tokens are too short"),
        (("-f", "short.txt", "-c", "20", "--ppl-stride", "20"), "a stride of 20 does not fit windows of 20"),
        (("-f", "short.txt", "-c", "20", "--chunks", "0"), "--chunks: no window is asked for"),
        (("--kl-divergence",), "no base is named; name its file with --kl-divergence-base"),
        (("--kl-divergence", "--kl-divergence-base", "none.kld"), "none.kld: cannot read the file"),
        (
            ("--kl-divergence", "--kl-divergence-base", "short.txt"),
            "short.txt: this is no file of saved logits",
        ),
        (("-f", "short.txt", "--ppl-stride", "4", "--save-all-logits", "x"), "strided windows are not saved"),
        (
            ("-f", "short.txt", "-c", "20", "--save-all-logits", "none/x"),
            "none: there is no such folder; make it first",
        ),
        (("-f", "short.txt", "--save-all-logits", "short.txt"), "short.txt: this is the file to read"),
        (("-f", "short.txt", "--save-all-logits", "link"), "link: this is the file to read"),
        (
            ("-f", "short.txt", "--kl-divergence-base", "short.txt"),
            "this file is there already; add --kl-div",
        ),
        (("-f", "short.txt", "--save-all-logits", "a", "--kl-divergence-base", "b"), "two files are named"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    words: tuple[str, ...],
    error: str,
    model: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit status 2, the error last, and nothing on standard output."""
    monkeypatch.chdir(tmp_path)
    text.rename("short.txt")
    Path("link").symlink_to(model)
    result = puna("perplexity", model, *words)
    assert result.status == 2
    assert error in result.error
    assert not result.out
