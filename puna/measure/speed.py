"""Timing a loaded model as llama-bench does: prompts, generation, both, at any depth of context."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from puna.cache import Sequence
from puna.measure.cost import Cost, step_cost

if TYPE_CHECKING:
    from puna.engine import Model

__all__ = ["Case", "Result", "measure"]


@dataclass(frozen=True)
class Case:
    """What is timed: `prompt` tokens at once, then `generate` tokens one by one, after `depth` that are not timed."""

    prompt: int
    generate: int
    depth: int = 0

    @property
    def name(self) -> str:
        """As llama-bench writes it: pp512, tg128, pp512+tg128 @ d4096."""
        parts = ((self.prompt, f"pp{self.prompt}"), (self.generate, f"tg{self.generate}"))
        name = "+".join(text for count, text in parts if count)
        return f"{name} @ d{self.depth}" if self.depth else name

    @property
    def tokens(self) -> int:
        return self.prompt + self.generate

    @property
    def positions(self) -> int:
        """What the context must hold."""
        return self.depth + self.tokens

    def cost(self, model: Model) -> Cost:
        """Of all of its steps together."""
        total, past = Cost(), self.depth
        for start in range(0, self.prompt, model.plan.tokens):
            count = min(model.plan.tokens, self.prompt - start)
            rows = int(start + count == self.prompt)
            total += step_cost(model.plan, [(past, count)], rows)
            past += count
        for i in range(self.generate):
            total += step_cost(model.plan, [(past + i, 1)], 1)
        return total


@dataclass(frozen=True)
class Result:
    """samples: nanoseconds of each repetition.  cost: of one of them."""

    case: Case
    samples: tuple[int, ...]
    cost: Cost

    @property
    def rates(self) -> list[float]:
        """Tokens a second of each repetition."""
        return [self.case.tokens * 1e9 / sample for sample in self.samples]

    @property
    def rate(self) -> float:
        """Their mean."""
        return statistics.fmean(self.rates)

    @property
    def rate_deviation(self) -> float:
        """Their standard deviation, 0 for a single one."""
        return deviation(self.rates)

    @property
    def seconds(self) -> float:
        """Mean time of a repetition."""
        return statistics.fmean(self.samples) / 1e9

    @property
    def seconds_deviation(self) -> float:
        return deviation(self.samples) / 1e9

    @property
    def bytes_rate(self) -> float:
        """Bytes a second of weights and cache."""
        return self.cost.read / self.seconds

    @property
    def ops_rate(self) -> float:
        """Operations a second of matrix products."""
        return self.cost.ops / self.seconds

    @property
    def dots_rate(self) -> float:
        """Those of byte dots."""
        return self.cost.dots / self.seconds


def deviation(values: Tokens[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def measure(model: Model, case: Case, repeats: int, *, warmup: bool = True) -> Result:
    """Time a case. The tokens are random, the same at every call; choosing tokens is not part of it.

    Raises RequestError where the case does not fit the context.
    """
    random = np.random.default_rng(1)
    sequence = model.cache.open()
    try:
        if warmup:
            once(model, sequence, Case(case.prompt, min(1, case.generate), case.depth), random)
        samples = tuple(once(model, sequence, case, random) for _ in range(repeats))
    finally:
        model.cache.close(sequence)
    return Result(case, samples, case.cost(model))


def once(model: Model, sequence: Sequence, case: Case, random: np.random.Generator) -> int:
    """One repetition after `case.depth` tokens, in nanoseconds. The sequence keeps those, where it can."""
    while len(sequence) < case.depth:
        feed(model, sequence, draw(random, model, min(model.plan.tokens, case.depth - len(sequence))))
    ids = draw(random, model, case.tokens)
    row: NDArray[np.float32] = np.empty((1, model.width), np.float32)
    begin = time.perf_counter_ns()
    for start in range(0, case.prompt, model.plan.tokens):
        end = min(start + model.plan.tokens, case.prompt)
        rows = [end - start - 1] if end == case.prompt else []
        model.run(sequence, ids[start:end], rows, row[: len(rows)])
    for i in range(case.prompt, case.tokens):
        model.run(sequence, ids[i : i + 1], [0], row)
    taken = time.perf_counter_ns() - begin
    model.cache.truncate(sequence, case.depth)
    return taken


def feed(model: Model, sequence: Sequence, ids: Tokens[int]) -> None:
    model.run(sequence, ids, [], np.empty((0, model.width), np.float32))


def draw(random: np.random.Generator, model: Model, count: int) -> list[int]:
    return [int(i) for i in random.integers(0, model.n_vocab, count)]
