"""`puna bench`: llama-bench's options, its table and its other formats."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import puna
from tiny_model import write_tiny

from puna import measure
from puna.cli.bench import build, cases_of, columns, numbers, words
from puna.engine import Model
from puna.errors import BackendError
from puna.measure import Case, Peaks, Result

PEAKS = Peaks(2, 40e9, 900e9)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "a.gguf", quant="Q8_0", n_ctx=4096)


@pytest.fixture(autouse=True)
def peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure_peaks", lambda: PEAKS)
    monkeypatch.setattr(measure, "busy_note", lambda: None)


def quick(model: Path, *options: object) -> tuple[object, ...]:
    return "bench", "-m", model, "-p", 8, "-n", 2, "-r", 2, *options


def test_ranges_are_llama_benchs() -> None:
    """first, first-last, first-last+step and first-last*factor, joined by commas."""
    assert numbers("7", 0) == [7]
    assert numbers("1-4", 0) == [1, 2, 3, 4]
    assert numbers("0-4096+2048", 0) == [0, 2048, 4096]
    assert numbers("1-20*3", 0) == [1, 3, 9]
    assert words("a,b,") == ["a", "b"]


@pytest.mark.parametrize("text", ["x", "4-1", "0-8*2", "1-8*1", "1-8+0", "-1", "0-999999", ""])
def test_ranges_that_are_none(model: Path, text: str) -> None:
    """A range that runs backwards, never ends or is no number is refused, in one line that names the option."""
    result = puna(*quick(model, f"--n-gen={text}"))
    assert result.status == 2
    assert "-n/--n-gen" in result.error


def test_options_come_as_lists_and_several_times() -> None:
    """A list is the sum of all that was given; the default counts only where nothing was."""
    parser = build("puna bench")
    given = parser.parse(["-p", "16,32", "-p", "64", "-t", "1-4*2", "-m", "a,b", "-m", "c"])
    assert given.n_prompt == [16, 32, 64]
    assert given.threads == [1, 2, 4]
    assert given.model == ["a", "b", "c"]
    assert given.n_gen == [128]
    assert parser.parse([]).n_prompt == [512]


def test_tests_are_in_llama_benchs_order() -> None:
    """For each depth the prompts, the generations, then prompt and generation together; 0 is none."""
    parser = build("puna bench")
    names = [c.name for c in cases_of(parser.parse(["-p", "0,8", "-n", "4", "-pg", "8,4", "-d", "0,32"]))]
    once = ["pp8", "tg4", "pp8+tg4"]
    assert names == [*once, *(f"{name} @ d32" for name in once)]


def test_columns_show_what_is_not_at_its_default() -> None:
    """Batch sizes and cache types have columns only where they were given."""
    parser = build("puna bench")
    assert columns(parser.parse([])) == []
    assert columns(parser.parse(["-ub", "64", "-ctk", "f16"])) == ["n_ubatch", "type_k"]


def test_table(model: Path) -> None:
    """llama-bench's columns, then bytes and operations a second with their share of the peak; a row a test."""
    result = puna(*quick(model, "-ub", 4, "-t", 1))
    assert result.status == 0, result.err
    heading, rule, prompt, generation, *rest = result.out.splitlines()
    cells = [cell.strip() for cell in heading.strip("|").split("|")]
    assert cells == [
        *("model", "size", "params", "backend", "threads", "n_ubatch", "test", "t/s"),
        *("GB/s", "of peak", "GOP/s", "of peak"),
    ]
    assert rule.startswith("| ------------------------------ | ---------: |")
    assert len({len(line) for line in (heading, rule, prompt, generation)}) == 1
    assert [cell.strip() for cell in prompt.split("|")][1:8] == [
        *("llama 0M Q8_0", "0.11 MiB", "0.11 M", "reference", "1", "4", "pp8")
    ]
    assert " tg2 " in generation
    assert " ± " in generation
    assert rest[-1] == "peak: 40.0 GB/s read from memory, 900 GOP/s of int8 dots (2 threads)"


def test_every_combination_is_run(model: Path) -> None:
    """Models, cache types and threads are combined; each is a row of every test."""
    result = puna("bench", model, "-m", model, "-p", 4, "-n", 0, "-r", 1, "-ctk", "f16,f32", "-o", "jsonl")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["type_k"] for row in rows] == ["f16", "f32"] * 2


def test_json(model: Path) -> None:
    """llama-bench's fields, all samples, and what a repetition costs; the output is one array."""
    first, second = json.loads(puna(*quick(model, "-o", "json", "-d", 16)).out)
    assert (first["n_prompt"], first["n_gen"], first["n_depth"]) == (8, 0, 16)
    assert (second["n_prompt"], second["n_gen"], second["n_depth"]) == (0, 2, 16)
    assert first["model_filename"] == str(model)
    assert len(first["samples_ns"]) == len(first["samples_ts"]) == 2
    assert first["avg_ts"] == pytest.approx(sum(first["samples_ts"]) / 2)
    assert first["avg_ns"] == pytest.approx(sum(first["samples_ns"]) / 2, abs=1)
    assert second["bytes"] > first["bytes"] > 100_000
    assert (first["peak_bytes_s"], first["peak_ops_s"]) == (40e9, 900e9)


def test_csv(model: Path) -> None:
    """A heading once, then quoted rows with the same fields."""
    lines = puna(*quick(model, "-o", "csv")).out.splitlines()
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    assert [row["n_prompt"] for row in rows] == ["8", "0"]
    assert lines[1].startswith('"') and lines[1].endswith('"')  # noqa: PT018
    assert float(rows[0]["avg_ts"]) > 0


def test_without_peaks_their_columns_are_left_out(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the CPU backend cannot start, the reason is said and the table is llama-bench's."""

    def fail() -> Peaks:
        raise BackendError("the cpu backend cannot start: no llvmlite")

    monkeypatch.setattr(measure, "measure_peaks", fail)
    result = puna(*quick(model))
    assert result.status == 0
    assert "no llvmlite" in result.err
    assert "of peak" not in result.out
    assert json.loads(puna(*quick(model, "-o", "jsonl")).out.splitlines()[0])["peak_ops_s"] is None


def test_a_busy_machine_is_noted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note says how much of the processors other programs use; an idle machine has none."""
    import psutil

    monkeypatch.undo()
    monkeypatch.setattr(measure, "measure_peaks", lambda: PEAKS)
    monkeypatch.setattr(psutil, "cpu_percent", lambda _: 43.0)
    assert "note: other programs use 43% of the processors" in puna(*quick(model)).err
    monkeypatch.setattr(psutil, "cpu_percent", lambda _: 3.0)
    assert "other programs" not in puna(*quick(model)).err


def test_mistakes(model: Path) -> None:
    """No model, no test, an unknown format or cache type: one line and status 2."""
    assert "no model is named" in puna("bench").error
    assert "no test is asked for" in puna("bench", model, "-p", 0, "-n", 0).error
    assert "'sql' is not one of" in puna("bench", model, "-o", "sql").error
    assert "q9" in puna(*quick(model, "-ctv", "q9")).error
    assert "such as 512,128" in puna(*quick(model, "-pg", "512")).error
    assert "leave it out" in puna(*quick(model, "--profile", "-o", "json")).error


@pytest.mark.parametrize("profile", [(), ("--profile",)], ids=["tests", "profile"])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("-m", "no-such.gguf"), "no-such.gguf"),
        (("-t", "1,100000"), r"threads \(-t\): 100000 threads are impossible"),
        (("-ctk", "f16,q9"), "q9"),
        (("--backend", "cpu,abacus"), "no backend is called 'abacus'"),
        (("-d", 2**31 - 2048), "of memory .* are free"),
    ],
)
def test_all_is_checked_before_anything_is_measured(
    model: Path, monkeypatch: pytest.MonkeyPatch, profile: tuple[str], options: tuple[object], error: str
) -> None:
    """The last value of a list is refused before the peaks are measured, a model loaded or a line printed."""
    pytest.importorskip("llvmlite")

    def fail(*_: object, **__: object) -> None:
        pytest.fail("something was measured or loaded")

    for name in ("puna.measure.measure_peaks", "puna.load", "puna.measure.measure"):
        monkeypatch.setattr(name, fail)
    backend = () if "--backend" in options else ("--backend", "cpu")
    result = puna("bench", model, *backend, *options, *profile)
    assert result.status == 2
    assert re.search(error, result.error)
    assert not result.out


@pytest.mark.parametrize(("form", "rows"), [("json", 1), ("jsonl", 1), ("csv", 1)])
def test_what_was_measured_stays_readable(
    model: Path, monkeypatch: pytest.MonkeyPatch, form: str, rows: int
) -> None:
    """When a later test fails, the rows before it are whole: JSON's array is closed."""
    once = measure.measure

    def fail_later(model: Model, case: Case, *more: Any, **options: Any) -> Result:
        if case.generate:
            raise BackendError("the machine caught fire")
        return once(model, case, *more, **options)

    monkeypatch.setattr(measure, "measure", fail_later)
    result = puna(*quick(model, "-o", form))
    assert result.status == 2
    assert "caught fire" in result.error
    read: dict[str, Callable[[str], list[Any]]] = {
        "json": json.loads,
        "jsonl": lambda text: [json.loads(line) for line in text.splitlines()],
        "csv": lambda text: list(csv.DictReader(io.StringIO(text))),
    }
    assert [int(row["n_prompt"]) for row in read[form](result.out)] == [8] * rows


@pytest.mark.parametrize(("quant", "share"), [("Q8_0", True), ("F16", False)])
def test_floats_have_no_share_of_byte_dots(tmp_path: Path, quant: str, share: bool) -> None:
    """A model of floats computes none, so its last column is empty; its operations are still counted."""
    model = write_tiny(tmp_path / "b.gguf", quant=quant)
    cells = [cell.strip() for cell in puna(*quick(model)).out.splitlines()[2].strip("|").split("|")]
    assert (cells[-1] != "") is share
    assert float(cells[-2]) >= 0
    assert cells[-3].endswith("%")
    row = json.loads(puna(*quick(model, "-o", "jsonl")).out.splitlines()[0])
    assert row["dots"] == (row["ops"] if share else 0)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles of one repetition."""
    pytest.importorskip("llvmlite")
    for name, value in {"SECONDS": 0.0, "LEAST": 1, "EMPTY": 5}.items():
        monkeypatch.setattr(f"puna.measure.profile.{name}", value)


@pytest.mark.usefixtures("brief")
def test_profile_of_lists(model: Path) -> None:
    """Each -p at each -d has its step, then a decode step; -p 0 leaves that alone."""
    command = ("bench", model, "--profile", "--backend", "cpu", "-t", 1)
    out = puna(*command, "-p", "4,8", "-d", "0,16").out
    found = re.findall(r"(\w+) step of (\d+) tokens? at depth (\d+)", out)
    steps = [("prefill", "4"), ("prefill", "8"), ("decode", "1")]
    assert found == [(*step, depth) for depth in ("0", "16") for step in steps]
    assert puna(*command, "-p", 0).out.count("whole step") == 1


@pytest.mark.parametrize("option", [("-n", 128), ("-pg", "8,4"), ("-r", 5), ("--no-warmup",)])
def test_a_profile_refuses_what_it_has_no_use_for(model: Path, option: tuple[object]) -> None:
    """Options of tests are an error with --profile, even at their default values."""
    error = puna("bench", model, "--profile", *option).error
    assert error == f"{option[0]}: a profile is of single steps, repeated for some seconds; leave it out"


@pytest.mark.usefixtures("brief")
def test_profile(model: Path) -> None:
    """--profile shows a prompt's step and a decode step, operation by operation."""
    result = puna("bench", model, "--profile", "-p", 12, "-d", 4, "--backend", "cpu", "-t", 1)
    assert result.status == 0, result.err
    assert "prefill step of 12 tokens at depth 4: " in result.out
    assert "decode step of 1 token at depth 4: " in result.out
    assert result.out.count("whole step") == 2
    assert "barriers" not in result.out  # of one thread
    assert "the cpu backend" in puna("bench", model, "--profile", "--backend", "reference").error
