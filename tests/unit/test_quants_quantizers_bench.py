"""bench/quant_errors.py: what its table says, and where it goes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from puna.quants import by_name

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import quant_errors as quant_errors_module  # noqa: E402 - it is no package

quant_errors: Any = quant_errors_module


def test_table() -> None:
    """Rows from the fewest bits a weight; a ratio for each pair, and dashes where there is no other quantiser."""
    rows = [
        quant_errors.Row(by_name("Q4_K"), (0.07, 0.06), (0.1, 0.12)),
        quant_errors.Row(by_name("Q2_K"), (0.26, 0.22), (None, None)),
    ]
    lines = quant_errors.render(rows, "other", "below").splitlines()
    heading = "| type | bits a weight | Puna | other | ratio | Puna, weighted | other, weighted | ratio |"
    assert lines[0] == heading
    assert lines[2] == "| Q2_K | 2.625 | 0.26000 | - | - | 0.22000 | - | - |"
    assert lines[3] == "| Q4_K | 4.5 | 0.07000 | 0.10000 | 0.700 | 0.06000 | 0.12000 | 0.500 |"
    assert lines[-1] == "below"


def test_against_gguf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without llama.cpp the gguf package is the other; the table goes into its place on a page."""
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- quant errors -->\nold\n<!-- quant errors end -->\nbelow\n")
    assert quant_errors.main(["--values", "4096", "--write", str(page)]) == 0
    table = capsys.readouterr().out
    assert page.read_text() == f"above\n<!-- quant errors -->\n\n{table}\n<!-- quant errors end -->\nbelow\n"
    q8 = next(line.split(" | ") for line in table.splitlines() if line.startswith("| Q8_0 "))
    assert q8[2] == q8[3]
    assert q8[4] == "1.000"


def test_against_llama_cpp(capsys: pytest.CaptureFixture[str]) -> None:
    """With an interpreter that has llama.cpp, all types have two ratios, none above 1."""
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("needs llama-cpp-python")
    assert quant_errors.main(["--values", "65536", "--llama-python", sys.executable]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:] if line.startswith("|")]
    assert len(rows) == len(quant_errors.names())
    assert max(float(row[i].rstrip(" |")) for row in rows for i in (4, 7)) <= 1
