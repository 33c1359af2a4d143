"""bench/compare.py: engines take turns, samples become medians and ratios, the table goes into its page."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import compare as comparison  # noqa: E402 - it is no package
import engines as engine_module  # noqa: E402
import make_model  # noqa: E402

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


def test_the_page_says_what_its_models_are() -> None:
    """Each model of the table in docs/performance.md is described below it; made-up ones have make_model's names."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- compare -->\n(.*?)<!-- compare end -->", page, re.DOTALL)
    models = set(re.findall(r"^\| ([\w.-]+) \| (?:prefill|decode|peak|command)", block, re.MULTILINE))
    (below,) = re.findall(r"^Models, and the types of their bytes: (.+)\.$", block, re.MULTILINE)
    assert models == {text.split(" is ")[0] for text in below.split("; ")}
    made = {f"{shape}-{mix}" for shape in make_model.SHAPES for mix in make_model.MIXES}
    assert {model for model in models if model.startswith("qwen")} <= made


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
    (name,) = engines.bench_names([str(program)])
    assert name == "ik"
    engine = engines.LlamaBench(name, str(program), "m.gguf", 2)
    assert engine.ask("decode", tokens=100, depth=64) == 2
    assert (tmp_path / "said").read_text() == "-m m.gguf -t 2 -r 1 -o json -n 100 -p 0 -d 64"
    assert engine.ask("together", tokens=1, sequences=8, depth=0) is None
    assert engine.first() is None


def test_no_two_engines_share_a_name() -> None:
    """A llama-bench is named after its folder, or by its path where that is the name of another engine."""
    a, b, c, d = (
        str(Path(place).resolve()) for place in ("/a/bin/x", "/b/bin/x", "/b/ik/x", "/b/llama.cpp/x")
    )
    assert engines.bench_names([a, b, c, d], taken=["Puna", "llama.cpp"]) == [a, b, "ik", d]


def test_ids_are_in_the_vocabulary() -> None:
    """All engines are fed the same ids, from wherever they go on, and none that a small vocabulary lacks."""
    assert engines.token_ids(3, 50_000) == [100, 101, 102]
    assert engines.token_ids(2, 50_000, 999) == [1099, 100]
    whole = engines.token_ids(2000, 300)
    assert set(whole) == set(range(300))
    assert engines.token_ids(500, 300, 700) == whole[700:1200]


def test_depths_beyond_a_small_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puna's worker fills a context with more tokens than the vocabulary has ids."""
    pytest.importorskip("llvmlite")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    model = write_tiny(tmp_path / "a.gguf", quant="Q8_0", n_ctx=1024)
    worker = engines.puna_worker(str(model), 1, 1024)
    try:
        assert worker.ask("prefill", tokens=400, depth=0) > 0
        assert worker.ask("decode", tokens=4, depth=600) > 0
        assert worker.ask("together", tokens=2, sequences=2, depth=300) > 0
    finally:
        worker.close()


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The line that refuses a command line."""
    with pytest.raises(SystemExit) as caught:
        compare.parsed([str(word) for word in words])
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["-r", 0], "-r/--repeats: 0 is not between 1 and"),
        (["--prefill", 0], "--prefill: 0 is not between 1 and"),
        (["--decode", 0], "--decode: 0 is not between 1 and"),
        (["-t", 0], "-t/--threads: 0 is not between 1 and"),
        (["--sequences", -1], "--sequences: -1 is not between 0 and"),
        (["--depth", "x"], "--depth: 'x' is not a whole number"),
        (
            ["--llama-python", "no-such-python"],
            "--llama-python: 'no-such-python' is no program that can be run",
        ),
        (["--llama-bench", "no/such/llama-bench"], "is no program that can be run"),
        (["--llama-bench", sys.executable, "--llama-bench", sys.executable], "--llama-bench is given twice"),
        (["--deep", "q4"], "--deep q4 is in no file's name, or --depth is missing"),
        (["--json", "no/such/folder/a.json"], "No such file"),
        (["--json", "."], "'.'"),
        (["--write", "no-such-page.md"], "No such file"),
        (["--write", "plain.md"], "there is no <!-- compare --> block"),
        (["no-such.gguf"], "no-such.gguf"),
        (["plain.md"], "plain.md"),
    ],
)
def test_mistakes_are_found_first(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[object],
    error: str,
) -> None:
    """Whatever cannot be read, written, run or measured is refused in a line before the first engine starts."""
    monkeypatch.chdir(tmp_path)
    model = write_tiny(tmp_path / "a.gguf")
    (tmp_path / "plain.md").write_text("nothing here\n", encoding="utf-8")
    assert error in refused(capsys, model, *options)


def test_sound_options_pass(tmp_path: Path) -> None:
    """Files that can be written are, and a page is left as it is."""
    model, page = write_tiny(tmp_path / "a-q4.gguf"), tmp_path / "page.md"
    page.write_text("<!-- compare -->\n\nold\n\n<!-- compare end -->\n", encoding="utf-8")
    words = [model, "--json", tmp_path / "a.json", "--write", page, "--deep", "q4", "--depth", 8]
    args = compare.parsed([*map(str, words), "--llama-python", sys.executable])
    assert (args.repeats, args.depth) == (5, 8)
    assert args.llama_python == sys.executable
    assert "old" in page.read_text(encoding="utf-8")


def test_what_was_measured_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the second model's engine fails, the first one's rows are printed and kept; the page stays as it was."""
    names = ["a", "b"]
    models = [str(write_tiny(tmp_path / f"{name}.gguf")) for name in names]
    page, kept = tmp_path / "page.md", tmp_path / "kept.json"
    page.write_text("<!-- compare -->\nold\n<!-- compare end -->\n", encoding="utf-8")

    def start(model: str, args: argparse.Namespace) -> list[Fake]:
        if model == models[1]:
            raise SystemExit("error: it ended")
        return [Fake("Puna", 1, [])]

    monkeypatch.setattr(compare, "engines_for", start)
    monkeypatch.setattr(compare, "machine", lambda engines, args: ["below"])
    monkeypatch.setattr(sys, "argv", ["compare.py", *models, "--json", str(kept), "--write", str(page)])
    with pytest.raises(SystemExit, match="it ended"):
        compare.main()
    assert "| a | prefill 512, tokens/s |" in capsys.readouterr().out
    assert {row["model"] for row in json.loads(kept.read_text(encoding="utf-8"))["rows"]} == {"a"}
    assert "old" in page.read_text(encoding="utf-8")


def test_programs_that_cannot_start_are_named(tmp_path: Path) -> None:
    """A path that is gone, or no program after all, is an error in a line."""
    with pytest.raises(SystemExit, match=r"^error: .*none: "):
        engines.Worker("X", [str(tmp_path / "none")], [])
    with pytest.raises(SystemExit, match=r"^error: .*none: "):
        engines.LlamaBench("x", str(tmp_path / "none"), "m.gguf", 1).ask("decode", tokens=1, depth=0)


def test_models_are_described(tmp_path: Path) -> None:
    """Below the table stands what each file is made of."""
    model = write_tiny(tmp_path / "a.gguf", quant="Q8_0")
    assert compare.described(str(model)) == "a is llama 0M Q8_0 (Q8_0 99%, F32 1%)"


def test_samples_are_kept_as_json() -> None:
    """--json has every sample."""
    row = compare.Row("m", compare.Measure("decode", lambda _: None), {"Puna": [1.5, 2.5]})
    (held,) = json.loads(json.dumps(compare.as_json([row], ["x"])))["rows"]
    assert held == {"model": "m", "measure": "decode", "more": True, "samples": {"Puna": [1.5, 2.5]}}
