"""Where the time of a step goes: its kernel calls run one at a time from Python, in order, several times over.

In order, because only then does a call find the caches as it does in a whole step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from puna.errors import BackendError
from puna.measure.cost import Cost, record_cost
from puna.plan import Record

if TYPE_CHECKING:
    from puna.backends.cpu.program import Program
    from puna.engine import Model

__all__ = ["Profile", "Row", "profile_step", "refuse_other_backends"]

ENDS, NEXT = 5, 4  # words of a record; see puna.backends.cpu.runner
SECONDS, LEAST, MOST = 2.0, 3, 40  # how long a step is repeated, and how often at least and at most
EMPTY = 100  # calls without work


@dataclass(frozen=True)
class Row:
    """All calls of a step that do the same. kind, shape: the weight's, where a matrix is read.

    seconds: of all calls together, each the fastest of its repetitions: what disturbs a call only ever slows it.
    """

    kernel: str
    kind: str
    shape: str
    calls: int
    seconds: float
    cost: Cost

    @property
    def nbytes(self) -> int:
        return self.cost.read + self.cost.values

    @property
    def ops(self) -> int:
        return self.cost.ops + self.cost.attention


@dataclass(frozen=True)
class Profile:
    """rows: the most time first.  step: seconds of a step.  busy: those in which the calling thread had a core.

    native: the same of all calls in one go, without what Python does before and after.
    """

    tokens: int
    depth: int
    threads: int
    rows: tuple[Row, ...]
    native: float
    busy: float
    step: float

    @property
    def waits(self) -> float:
        """Seconds that the calls in one go take longer than one by one: threads that wait for one another."""
        return self.native - sum(row.seconds for row in self.rows)

    @property
    def python(self) -> float:
        """Seconds of a step before its calls and after."""
        return self.busy - self.native

    @property
    def away(self) -> float:
        """Seconds of a step in which the calling thread had no core: others ran there."""
        return self.step - self.busy


def profile_step(model: Model, tokens: int, depth: int = 0) -> Profile:
    """Profile a step of `tokens` tokens of one sequence that holds `depth`, the last of which wants logits.

    Raises BackendError where the model does not run on the CPU backend.
    """
    refuse_other_backends(model.about.name)
    program, sequence = cast("Program", model.program), model.cache.open()
    logits, ids = np.empty((1, model.width), np.float32), [i % model.n_vocab for i in range(depth + tokens)]
    try:
        for start in range(0, depth, model.plan.tokens):
            model.run(sequence, ids[start : min(depth, start + model.plan.tokens)], [], logits[:0])
        batch = model.cache.append((sequence, ids[depth:]), outputs=[tokens - 1])
        found = timings(program, partial(program.run, batch, logits))
    finally:
        model.cache.close(sequence)
    records = model.plan.records
    costs = [record_cost(model.plan, record, [(depth, tokens)], 1) for record in records]
    rows = grouped([row_of(r, s, c) for r, s, c in zip(records, found.calls, costs, strict=True)])
    return Profile(tokens, depth, program.team.threads, rows, found.native, found.busy, found.step)


def refuse_other_backends(name: str) -> None:
    """Raise BackendError where a backend is not the one that can be profiled."""
    if name != "cpu":
        raise BackendError(f"a profile needs the cpu backend, and this is {name}", fix="use --backend cpu")


@dataclass(frozen=True)
class Timings:
    """Seconds: the least of each call; medians of a step, of its part on a core, and of that of its calls in one go."""

    calls: list[float]
    native: float
    busy: float
    step: float


class Clock:
    """Times one thing again and again: the seconds that pass, and those in which this thread has a core."""

    def __init__(self) -> None:
        self.walls = list[float]()
        self.used = 0.0

    def time(self, run: Callable[[], None]) -> None:
        begin = time.thread_time()
        self.walls.append(timed(run))
        self.used += time.thread_time() - begin

    @property
    def wall(self) -> float:
        return statistics.median(self.walls)

    @property
    def busy(self) -> float:
        """By the sums: some systems count a thread's time in ticks that are longer than a step."""
        return self.wall * min(1.0, self.used / sum(self.walls))


def timings(program: Program, run: Callable[[], None]) -> Timings:
    """Repeat a step: whole, its calls in one go, its calls one by one."""
    count, address = len(program.records), int(program.records.ctypes.data)
    size = program.records.strides[0]
    run()
    singles, natives, steps = list[list[float]](), Clock(), Clock()
    end = time.perf_counter() + SECONDS
    while len(singles) < LEAST or (len(singles) < MOST and time.perf_counter() < end):
        steps.time(run)
        natives.time(partial(program.team.run, address, count))
        with single_calls(program):
            singles.append([timed(partial(program.team.run, address + i * size, 1)) for i in range(count)])
    nothing = cost_of_nothing(program, address)
    calls = [max(0.0, min(times) - nothing) for times in zip(*singles, strict=True)]
    return Timings(calls, natives.busy, steps.busy, steps.wall)


@contextmanager
def single_calls(program: Program) -> Iterator[None]:
    """Every record ends at a barrier of its own, so that it can be run alone."""
    ends = program.records[:, ENDS].copy()
    program.records[:, ENDS], program.records[:, NEXT] = 1, 0
    try:
        yield
    finally:
        program.records[:, ENDS] = ends


def cost_of_nothing(program: Program, address: int) -> float:
    """Seconds that it takes to run a call without work: what Python and waking threads add to each single call."""
    units = int(program.records[0, 2])
    with single_calls(program):
        program.records[0, 2] = 0
        times = [timed(partial(program.team.run, address, 1)) for _ in range(EMPTY)]
        program.records[0, 2] = units
    return min(times)


def timed(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def row_of(record: Record, seconds: float, cost: Cost) -> Row:
    node = record.nodes[0]
    matrix = node.op in {"linear", "linear_experts"}
    kind = node.inputs[1].type.dtype if matrix else ""
    shape = "x".join(map(str, node.inputs[1].type.shape)) if matrix else ""
    return Row(record.kernel, kind, shape, 1, seconds, cost)


def grouped(rows: list[Row]) -> tuple[Row, ...]:
    """Rows that do the same as one, the most time first."""
    found: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        key = row.kernel, row.kind, row.shape
        if key in found:
            so_far = found[key]
            calls, seconds = so_far.calls + 1, so_far.seconds + row.seconds
            row = replace(so_far, calls=calls, seconds=seconds, cost=so_far.cost + row.cost)
        found[key] = row
    return tuple(sorted(found.values(), key=lambda row: -row.seconds))
