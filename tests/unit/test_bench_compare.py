"""bench/compare.py: engines take turns, samples become medians and ratios, the table goes into its page."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import compare as comparison  # noqa: E402 - it is no package
import engines as engine_module  # noqa: E402

compare: Any = comparison
engines: Any = engine_module
OPTIONS = argparse.Namespace(prefill=16, decode=8, depth=32, sequences=4, first=True, repeats=3, deep="")


class Fake(engines.Engine):  # type: ignore[misc]
    """Says when it was asked, and takes longer each time."""

    def __init__(self, name: str, seconds: float, log: list[tuple[str, str]]) -> None:
        self.name, self.version, self.seconds, self.log = name, name, seconds, log

    def ask(self, do: str, **options: Any) -> Any:
        self.log.append((self.name, do))
        self.seconds *= 1.5
        return self.seconds

    def first(self) -> float:
        return float(self.ask("first"))


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "REST", 0.0)


def test_engines_take_turns() -> None:
    """A B A B for each measure; the first turn is not counted, memory is asked for once."""
    log: list[tuple[str, str]] = []
    rows = list(compare.compare("m.gguf", [Fake("A", 1, log), Fake("B", 2, log)], OPTIONS))
    expected = []
    for do in ("prefill", "decode", "prefill", "decode", "memory", "together", "first"):
        expected += [("A", do), ("B", do)] * (1 if do == "memory" else 4)
    assert log == expected
    assert [len(row.samples["A"]) for row in rows] == [3, 3, 3, 3, 1, 3, 3]


def test_rates_count_all_sequences() -> None:
    """A rate is tokens over seconds, those of all sequences together."""
    rates = [measure.take(Fake("A", 1, [])) for measure in compare.measures("m.gguf", OPTIONS)]
    assert rates[0] == pytest.approx(16 / 1.5)
    assert rates[1] == pytest.approx(8 / 1.5)
    assert rates[5] == pytest.approx(2 * 4 / 1.5)


def test_ratios_say_how_many_times_better() -> None:
    """More tokens a second and fewer bytes are both above 1; what is missing has no ratio."""
    more, less = compare.Measure("t/s", lambda _: None), compare.Measure("MiB", lambda _: None, more=False)
    samples = {"Puna": [100.0, 300.0, 200.0], "other": [50.0]}
    assert compare.Row("m", more, samples).ratio("Puna", "other") == 4
    assert compare.Row("m", less, samples).ratio("Puna", "other") == 0.25
    assert compare.Row("m", more, samples).ratio("Puna", "third") is None


def test_table() -> None:
    """A row a measure, a column and a ratio for each other engine, medians to three digits."""
    row = compare.Row("m", compare.Measure("decode", lambda _: None), {"Puna": [123.4], "B": [61.7], "C": []})
    lines = compare.render([row], ["Puna", "B", "C"], ["below"]).splitlines()
    assert lines[0] == "| model | measure | Puna | B | ratio | C | ratio |"
    assert lines[2] == "| m | decode | 123 | 61.7 | 2.00 | - | - |"
    assert lines[-1] == "below"


def test_the_page_has_a_place_for_the_table() -> None:
    """docs/performance.md has one block, and what is written there replaces what was."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    once = compare.rewrite(page, "| a |")
    assert once.count("| a |") == 1
    assert compare.rewrite(once, "| b |") == once.replace("| a |", "| b |")
    with pytest.raises(ValueError, match="block"):
        compare.rewrite("nothing", "| a |")


def answers(worker: Any) -> None:
    """A worker answers every request with a number that can be right."""
    for do in ("prefill", "decode"):
        assert 0 < worker.ask(do, tokens=8, depth=0) < 60
        assert 0 < worker.ask(do, tokens=4, depth=40) < 60
    assert 0 < worker.ask("together", tokens=3, sequences=4, depth=8) < 60
    memory = worker.ask("memory")
    assert memory is None or 10 << 20 < memory < 100 << 30
    assert worker.first() > 0
    assert worker.name in worker.version


def test_puna_as_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that holds Puna does all that it can be asked, in any order of depths."""
    pytest.importorskip("llvmlite")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    worker = engines.puna_worker(str(write_tiny(tmp_path / "a.gguf", quant="Q8_0")), 1, 512)
    try:
        answers(worker)
    finally:
        worker.close()


def test_llama_cpp_as_a_worker(tmp_path: Path) -> None:
    """The same of llama.cpp, where this interpreter has it."""
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("needs llama-cpp-python")
    worker = engines.llama_worker(sys.executable, str(write_tiny(tmp_path / "a.gguf", quant="Q8_0")), 1, 512)
    try:
        answers(worker)
    finally:
        worker.close()


def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    """The last lines of its errors are shown."""
    with pytest.raises(SystemExit, match="No such file"):
        engines.Worker("X", [sys.executable, str(tmp_path / "none.py")], [])


@pytest.mark.skipif(os.name == "nt", reason="a script is no program there")
def test_llama_bench_as_an_engine(tmp_path: Path) -> None:
    """It is called for one repetition without its other test, and its average is turned into seconds."""
    program = tmp_path / "ik" / "llama-bench"
    program.parent.mkdir()
    answer = '[{"avg_ts": 50.0}]'
    program.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'said')!r}, 'w').write(' '.join(sys.argv[1:]))\n"
        f"print({answer!r})\n"
    )
    program.chmod(0o755)
    engine = engines.LlamaBench(str(program), "m.gguf", 2)
    assert engine.name == "ik"
    assert engine.ask("decode", tokens=100, depth=64) == 2
    assert (tmp_path / "said").read_text() == "-m m.gguf -t 2 -r 1 -o json -n 100 -p 0 -d 64"
    assert engine.ask("together", tokens=1, sequences=8, depth=0) is None
    assert engine.first() is None


def test_samples_are_kept_as_json() -> None:
    """--json has every sample."""
    row = compare.Row("m", compare.Measure("decode", lambda _: None), {"Puna": [1.5, 2.5]})
    (held,) = json.loads(json.dumps(compare.as_json([row], ["x"])))["rows"]
    assert held == {"model": "m", "measure": "decode", "more": True, "samples": {"Puna": [1.5, 2.5]}}
