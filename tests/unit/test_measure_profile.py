"""A profile accounts for a whole step and leaves the model as it was."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

pytest.importorskip("llvmlite")

import puna
from puna.engine import Model
from puna.errors import BackendError
from puna.measure import Cost, Peaks, Profile, profile_step, step_cost
from puna.measure.profile import Clock, Row, grouped
from puna.measure.report import profile_lines


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = write_tiny(tmp_path_factory.mktemp("profile") / "a.gguf", quant="Q8_0")
    return puna.load(path, backend="cpu", n_ctx=128, n_batch=16, threads=2)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SECONDS": 0.0, "LEAST": 1, "EMPTY": 5}.items():
        monkeypatch.setattr(f"puna.measure.profile.{name}", value)


@pytest.mark.parametrize("tokens", [1, 9])
def test_every_call_is_accounted_for(model: Model, tokens: int) -> None:
    """The rows' calls and costs are those of the step, and their times with the rest add up to the whole."""
    found = profile_step(model, tokens, depth=20)
    assert sum(row.calls for row in found.rows) == len(model.plan.records)
    total = sum((row.cost for row in found.rows), Cost())
    assert total == step_cost(model.plan, [(20, tokens)], 1)
    times = sum(row.seconds for row in found.rows)
    assert times + found.waits + found.away + found.python == pytest.approx(found.step)
    assert found.threads == 2
    assert min(row.seconds for row in found.rows) >= 0
    matrices = [row for row in found.rows if row.kind == "Q8_0"]
    assert matrices
    assert all(row.cost.dots == row.cost.ops > 0 and row.shape for row in matrices)


def test_time_without_a_core_is_no_wait(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the thread has a core a quarter of the time, the other three are neither Python's nor at barriers."""
    monkeypatch.setattr("puna.measure.profile.time.thread_time", lambda: time.perf_counter() / 4)
    clock = Clock()
    clock.time(lambda: time.sleep(0.01))
    assert clock.wall >= 0.01
    assert clock.busy / clock.wall == pytest.approx(0.25, rel=0.1)
    found = profile_step(model, 9)
    assert found.away > found.step / 2
    assert found.native + found.python + found.away == pytest.approx(found.step)
    monkeypatch.setattr("puna.measure.profile.time.thread_time", lambda: time.perf_counter() * 2)
    assert profile_step(model, 9).away == 0


def test_a_profile_leaves_no_trace(model: Model) -> None:
    """Logits after it are bit for bit those before, and the cache is empty."""
    ids = list(range(40, 70))
    before = model.logits(ids)
    profile_step(model, 16, depth=10)
    profile_step(model, 1)
    np.testing.assert_array_equal(model.logits(ids), before)
    assert model.cache.room() == model.n_ctx


def test_a_profile_needs_the_cpu_backend(tmp_path: Path) -> None:
    """Another backend is refused with what to do."""
    model = puna.load(write_tiny(tmp_path / "a.gguf"), backend="reference", n_ctx=64)
    with pytest.raises(BackendError, match="--backend cpu"):
        profile_step(model, 1)


def test_alike_calls_are_one_row() -> None:
    """Times and costs of calls that do the same are summed; the longest row comes first."""
    one = Row("linear", "Q8_0", "8x8", 1, 0.5, Cost(weights=10))
    two = Row("linear", "Q8_0", "16x8", 1, 0.75, Cost(weights=20))
    first, second = grouped([one, two, one])
    assert (first.shape, first.calls, first.seconds, first.cost.weights) == ("8x8", 2, 1.0, 20)
    assert (second.shape, second.calls) == ("16x8", 1)


def test_the_table_gives_rates_and_shares() -> None:
    """GB/s and GOP/s follow from bytes, operations and time; shares from the peaks; what was not timed has none."""
    cost = Cost(weights=2_000_000, values=1000, ops=4_000_000, dots=4_000_000)
    rows = (Row("linear", "Q4_K", "8x8", 2, 0.001, cost), Row("select", "", "", 1, 0.0, Cost()))
    lines = profile_lines(Profile(1, 7, 2, rows, 0.0013, 0.0018, 0.002), Peaks(2, 4e9, 8e9))
    assert lines[0] == "decode step of 1 token at depth 7: 2.00 ms, 500.0 tokens/s"
    table = {line.split("  ")[0]: line.split() for line in lines[3:]}
    assert table["linear"] == [
        "linear",
        "Q4_K",
        "8x8",
        "2",
        "1.000",
        "50%",
        "2.00",
        "2.0",
        "50%",
        "4.0",
        "50%",
    ]
    assert table["select"] == ["select", "1", "0.000", "0%", "0.00"]
    assert table["(barriers, imbalance)"][-2:] == ["0.300", "15%"]
    assert table["(without a core)"][-2:] == ["0.200", "10%"]
    assert table["(Python)"][-2:] == ["0.500", "25%"]


def test_one_thread_has_no_barriers() -> None:
    """What is left of a single thread's time between its calls is not said to be spent at barriers."""
    row = Row("linear", "F16", "8x8", 2, 0.001, Cost(weights=2_000_000, ops=4_000_000))
    lines = profile_lines(Profile(1, 0, 1, (row,), 0.001, 0.0015, 0.002), Peaks(1, 4e9, 8e9))
    assert not any("barriers" in line for line in lines)
    (left,) = [line for line in lines if line.startswith("(between calls)")]
    assert left.split()[-2:] == ["0.000", "0%"]
    (floats,) = [line for line in lines if line.startswith("linear")]
    assert floats.split()[-2:] == ["50%", "4.0"]  # floats have no share of the byte dots' peak
