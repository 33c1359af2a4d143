"""What the machine can do at best, measured: bytes read from memory and byte dots, on all of its cores."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from puna import backends
from puna.backends.free import free_memory

if TYPE_CHECKING:
    from puna.backends.cpu.compiler import Compiler
    from puna.backends.cpu.threads import Team

__all__ = ["Peaks", "measure_peaks"]

CHUNK = 1 << 20  # bytes of a unit of reading
UNITS = 64  # of byte dots, for each thread in a run
MEMORY = 512 << 20  # bytes to read: more than any cache holds
SCRATCH = 4096  # bytes a thread
SECONDS = 0.25  # of each probe


@dataclass(frozen=True)
class Peaks:
    """read: bytes a second from memory.  int8: operations a second of byte dots, an addition and a product each.

    Either is the greater of what one thread reaches and what all reach together: two threads of a single core may
    get less done than one.
    """

    threads: int
    read: float
    int8: float


def measure_peaks(threads: int | None = None) -> Peaks:
    """Measure for a second or two. threads: None takes the physical cores that this process may use.

    Raises BackendError where the CPU backend cannot start.
    """
    backend: Any = backends.create("cpu", threads)
    from puna.backends.cpu.compiler import Compiler
    from puna.backends.cpu.memory import allocate

    # Not through the cache, whose keys do not know of the probes' sources.
    compiler = Compiler(backend.compiler.target, None)
    memory = allocate(max(CHUNK, min(MEMORY, free_memory() // 4) // CHUNK * CHUNK))
    memory[:] = 1  # a page that was never written is no memory yet
    found = [reached(compiler, count, memory) for count in sorted({1, backend.threads})]
    return Peaks(backend.threads, *(max(values) for values in zip(*found, strict=True)))


def reached(compiler: Compiler, threads: int, memory: NDArray[np.uint8]) -> tuple[float, float]:
    """Bytes read a second, and operations a second, of a number of threads."""
    from puna.backends.cpu.compiler import Spec
    from puna.backends.cpu.memory import allocate
    from puna.backends.cpu.threads import Team
    from puna.measure import probes

    target = compiler.target
    read, dots = Spec.of(probes.read), Spec.of(probes.dots)
    kernels = compiler.addresses_of([read, dots])
    operands = allocate(probes.OPERANDS)
    operands[:] = np.random.default_rng(1).integers(0, 128, len(operands), np.uint8)
    team = Team(compiler, threads, allocate(SCRATCH * threads))
    try:
        chunks = best(unit_runner(team, kernels[read], memory), len(memory) // CHUNK)
        units = best(unit_runner(team, kernels[dots], operands), UNITS * threads)
    finally:
        team.close()
    return chunks * CHUNK, units * probes.dots_of(target.vector, target.registers)


def unit_runner(team: Team, kernel: int, memory: NDArray[np.uint8]) -> Callable[[int], None]:
    """A function that runs a number of units of a probe on the team."""
    from puna.backends.cpu import runner
    from puna.backends.cpu.memory import allocate

    args = np.array([memory.ctypes.data], np.int64)
    record = allocate(runner.RECORD_BYTES).view(np.int64)
    record[:6] = kernel, args.ctypes.data, 0, 1, 0, 1

    def run(units: int, keep: Any = (args, memory)) -> None:
        record[2], record[4] = units, 0
        team.run(record.ctypes.data, 1)

    return run


def best(run: Callable[[int], None], units: int) -> float:
    """Units a second of the fastest of several runs: what disturbs a run only ever slows it."""
    run(units)
    fastest, end = float("inf"), time.perf_counter() + SECONDS
    while (start := time.perf_counter()) < end:
        run(units)
        fastest = min(fastest, time.perf_counter() - start)
    return units / fastest
