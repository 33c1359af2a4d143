"""`puna verify`: the verdict on a backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import puna
from tiny_model import write_tiny

from puna.cli.verify import build
from puna.measure.verify import PROMPTS


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "a.gguf", quant="Q4_0")


def test_the_cpu_backend_agrees(model: Path) -> None:
    """A line a text and one for all of them, the verdict, and the memory before anything is loaded."""
    result = puna("verify", model, "--backend", "cpu", "-c", 20)
    assert result.status == 0, result.err
    head, *rows, verdict = result.out.splitlines()
    assert head.split() == ["text", "tokens", "NMSE", "mean", "KL", "max", "KL", "same", "top"]
    assert len(rows) == len(PROMPTS) + 1
    assert rows[-1].split()[:2] == ["all", str(20 * len(PROMPTS))]
    assert verdict.startswith("agrees: the mean NMSE is ")
    note, first = result.err.splitlines()[:2]
    assert note == "note: of longer texts the first 20 tokens are compared (-c)"
    assert first.startswith("weights take ")
    assert all(f"on the {name} backend" in first for name in ("reference", "cpu"))


def test_the_exit_status_says_that_it_differs(model: Path) -> None:
    """Activations of 8 bits are beyond a bound of nothing."""
    result = puna("verify", model, "--backend", "cpu", "-p", "hello there", "--bound", 0)
    assert result.status == 1
    assert result.out.splitlines()[-1].startswith("DIFFERS: the mean NMSE is ")
    assert "error" not in result.err


@pytest.mark.parametrize("bound", ["-1", "nan", "inf", "x"])
def test_bounds_that_are_none(model: Path, bound: str) -> None:
    """A bound is a number from 0 on."""
    assert puna("verify", model, "--bound", bound).error.startswith("--bound: ")


def test_the_help_states_the_bound() -> None:
    """With its default."""
    assert "(default 0.01)" in " ".join(build("puna verify").format_help().split())


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "this would compare the reference backend with itself; name another"),
        (("--backend", "cpu", "-p", ""), "the text is empty"),
        (("--backend", "cpu", "-c", "0"), "leaves nothing of it"),
        (("--backend", "gpu"), "no backend is called 'gpu'"),
        (("--bound", "much"), "'much' is not a number"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(words: tuple[str, ...], error: str, model: Path) -> None:
    """Exit status 2. The reference backend is what `auto` is in these tests."""
    result = puna("verify", model, *words)
    assert result.status == 2
    assert error in result.error
