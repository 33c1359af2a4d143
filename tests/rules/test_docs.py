"""House rules on the documentation: its commands are the real ones, its output is quoted, its examples run."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny_model import ALPHABET, write_tiny

import puna
from puna import store
from puna.cli.main import COMMANDS
from puna.models.registry import architectures
from puna.quants import dequantize
from puna.quants.registry import TYPES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OUTPUT = re.compile(r"<!-- output: (.+?) -->")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    return OUTPUT.findall(page.read_text(encoding="utf-8"))


def test_the_first_screen_installs_runs_and_tests() -> None:
    """README's first two commands run a model and the tests; the second is literally a line of .ci/run."""
    run, tests = re.findall(r"^    (.+)$", README, re.MULTILINE)[:2]
    assert run.startswith("pip install . && puna run smollm2:135m ")
    assert tests == 'pip install -e ".[dev]" && scripts/test'
    assert tests in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_the_run_that_is_quoted_is_the_one_on_the_first_screen() -> None:
    """README shows the output of the very command that it starts with."""
    run = re.findall(r"^    (.+)$", README, re.MULTILINE)[0]
    assert run.removeprefix("pip install . && ") in commands(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quoted_output_is_marked(page: Path) -> None:
    """Every marked block is one of Puna's commands, and is closed; no output stands outside of one."""
    text = page.read_text(encoding="utf-8")
    assert len(commands(page)) == text.count("<!-- end -->")
    for command in commands(page):
        words = command.split()
        assert words[0] == "puna"
        assert words[1] in {*COMMANDS, "--help", "--version", "-m"}
    unmarked = re.sub(r"<!-- output:.*?<!-- end -->", "", text, flags=re.DOTALL)
    assert not re.search(r"^(usage: puna|error: |generated +\d)", unmarked, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_reader_sees_the_command_of_quoted_output(page: Path) -> None:
    """What made a block stands in the text too: comments are not shown. A help says itself whose it is."""
    shown = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for command in commands(page):
        if not command.endswith("--help"):
            assert command.partition(" | grep ")[0] in shown


def test_the_page_on_kernels_names_who_knows_processors() -> None:
    """The files of the cpu backend that ask for a processor's family are the three that the page names."""
    folder = ROOT / "puna" / "backends" / "cpu"
    asks = {
        path.name
        for path in folder.rglob("*.py")
        if re.search(r"x86_64|\.family\b", path.read_text(encoding="utf-8"))
    }
    page = (ROOT / "docs" / "how-kernels-work.md").read_text(encoding="utf-8")
    (sentences,) = re.findall(r"^`dot_u8s8` is a verb: .*?\n\n", page, re.DOTALL | re.MULTILINE)
    assert asks == set(re.findall(r"`(\w+\.py)`", sentences)) == {"target.py", "features.py", "runner.py"}


def test_command_line_page_has_every_command() -> None:
    """docs/command-line.md quotes the help of each command."""
    quoted = commands(ROOT / "docs" / "command-line.md")
    assert quoted == ["puna --help", *(f"puna {name} --help" for name in COMMANDS)]


def test_quoted_output_is_what_puna_prints() -> None:
    """`scripts/docs --check` finds no difference; blocks whose model is not here are left out."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs", "--check"],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"run scripts/docs\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("source", EXAMPLES, ids=range(len(EXAMPLES)))
def test_python_examples_run(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """README's Python runs as it stands, here on a generated model."""
    path = write_tiny(tmp_path / "tiny.gguf", follow=ALPHABET, n_ctx=2048)

    def resolve(name: str, *_: Any, **__: Any) -> Path:
        assert name in {model.name for model in store.catalogue()}
        return path

    monkeypatch.setattr(store, "resolve", resolve)
    monkeypatch.setenv("PUNA_BACKEND", "reference")
    exec(compile(source, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_there_are_python_examples() -> None:
    """README shows how to use Puna from Python."""
    assert len(EXAMPLES) >= 2
    assert all(f"puna.{name}" in README for name in ("load", "PunaError"))
    assert puna.load


def test_readme_lists_what_is_supported() -> None:
    """README's tensor types, and the architectures of their page, are those in the code."""
    page = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+) \| `puna/models/", page, re.MULTILINE)
    assert list(dict.fromkeys(rows)) == sorted(architectures())
    (types,) = re.findall(r"^Tensor types: (.+)\.$", README, re.MULTILINE)
    assert types.split(", ") == [quant.name for quant in TYPES.values()]


def test_the_example_of_a_quantisation_type_is_one() -> None:
    """The class in docs/add-a-quant.md gives the gguf package's numbers, and fits the length that the page names."""
    page = (ROOT / "docs" / "add-a-quant.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (most,) = re.findall(r"its length \((\d+) lines at most", page)
    found: dict[str, Any] = {}
    exec(compile(source, "add-a-quant.md", "exec"), found)
    quant = found["Q2_K"]()
    raw = np.random.default_rng(1).integers(0, 256, (8, quant.bytes), np.uint8)
    raw[:, [81, 83]] &= 0x3F  # finite scales
    wanted = gguf.dequantize(raw, gguf.GGMLQuantizationType.Q2_K)
    assert np.array_equal(dequantize(quant, raw).reshape(wanted.shape), wanted)
    body = ast.unparse(ast.parse(source).body[-1]).replace("\n\n", "\n").splitlines()
    assert len(body) - 1 <= int(most)  # but for the docstring
    limit = (ROOT / "tests" / "unit" / "test_quants.py").read_text(encoding="utf-8")
    assert f"splitlines()) <= {most}\n" in limit


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file that is there."""
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
