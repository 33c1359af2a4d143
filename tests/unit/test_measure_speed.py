"""Timing as llama-bench does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny

import puna
from puna.engine import Model
from puna.errors import RequestError
from puna.measure import Case, Cost, Result, measure, step_cost


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return puna.load(write_tiny(tmp_path / "a.gguf"), backend="reference", n_ctx=128, n_batch=16)


@pytest.fixture
def steps(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """What runs: positions held, tokens, rows that want logits."""
    seen: list[tuple[int, int, int]] = []
    run = model.run

    def watched(sequence: Any, ids: Sequence[int], rows: Sequence[int], out: Any) -> None:
        seen.append((len(sequence), len(ids), len(rows)))
        assert all(0 <= token < model.n_vocab for token in ids)
        run(sequence, ids, rows, out)

    monkeypatch.setattr(model, "run", watched)
    return seen


def test_names_are_llama_benchs() -> None:
    """pp512, tg128, pp512+tg128, and the depth after an @."""
    assert Case(512, 0).name == "pp512"
    assert Case(0, 128).name == "tg128"
    assert Case(512, 128, 4096).name == "pp512+tg128 @ d4096"


def test_a_prompt_is_computed_in_batches(model: Model, steps: list[tuple[int, int, int]]) -> None:
    """n_batch tokens at a time, logits of the last alone."""
    measure(model, Case(40, 0), 1, warmup=False)
    assert steps == [(0, 16, 0), (16, 16, 0), (32, 8, 1)]


def test_generation_is_a_token_a_step(model: Model, steps: list[tuple[int, int, int]]) -> None:
    """Each repetition begins at the depth, after whatever prompt the case has."""
    measure(model, Case(8, 2, 20), 2, warmup=False)
    once = [(20, 8, 1), (28, 1, 1), (29, 1, 1)]
    assert steps == [(0, 16, 0), (16, 4, 0), *once, *once]


def test_warmup_is_the_prompt_and_one_token(model: Model, steps: list[tuple[int, int, int]]) -> None:
    """It comes first and is not among the samples."""
    result = measure(model, Case(8, 5), 2)
    assert steps[:2] == [(0, 8, 1), (8, 1, 1)]
    assert len(steps) == 2 + 2 * 6
    assert len(result.samples) == 2
    assert min(result.samples) > 0


def test_the_cache_is_left_empty(model: Model) -> None:
    """A measurement gives all of its pages back, also when it does not fit."""
    measure(model, Case(30, 4, 10), 1)
    with pytest.raises(RequestError, match="context of 128"):
        measure(model, Case(100, 0, 100), 1)
    assert model.cache.room() == 128


def test_cost_is_that_of_all_steps(model: Model) -> None:
    """The cost of a case is the sum over its steps, each at its own depth."""
    expected = (
        step_cost(model.plan, [(5, 16)], 0)
        + step_cost(model.plan, [(21, 4)], 1)
        + step_cost(model.plan, [(25, 1)], 1)
        + step_cost(model.plan, [(26, 1)], 1)
    )
    assert Case(20, 2, 5).cost(model) == expected


def test_rates() -> None:
    """Rates are means over repetitions, deviations those of a sample, and one repetition deviates by 0."""
    result = Result(Case(90, 10), (500_000_000, 1_000_000_000), Cost(weights=600, kv=150, ops=1500))
    assert result.rates == [200, 100]
    assert result.rate == 150
    assert result.rate_deviation == pytest.approx(70.710678)
    assert result.bytes_rate == pytest.approx(1000)
    assert result.ops_rate == pytest.approx(2000)
    assert Result(Case(1, 0), (5,), Cost()).rate_deviation == 0
