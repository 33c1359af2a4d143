"""The probes do the work that they are timed for."""

from __future__ import annotations

import numpy as np
import pytest

llvmlite = pytest.importorskip("llvmlite")

from puna.backends.cpu import runner  # noqa: E402 - llvmlite may be missing
from puna.backends.cpu.compiler import Compiler, Spec  # noqa: E402
from puna.backends.cpu.memory import allocate  # noqa: E402
from puna.backends.cpu.target import Target  # noqa: E402
from puna.backends.cpu.threads import Team  # noqa: E402
from puna.errors import BackendError  # noqa: E402
from puna.measure import measure_peaks, peaks, probes  # noqa: E402

SCRATCH = peaks.SCRATCH


def run(target: Target, spec: Spec, memory: np.ndarray, units: int) -> np.ndarray:  # type: ignore[type-arg]
    """What a probe leaves in the scratch memory of a single thread, as int32."""
    compiler, scratch = Compiler(target, None), allocate(SCRATCH)
    team = Team(compiler, 1, scratch)
    args = np.array([memory.ctypes.data], np.int64)
    record = allocate(runner.RECORD_BYTES).view(np.int64)
    record[:6] = compiler.addresses_of([spec])[spec], args.ctypes.data, units, units, 0, 1
    team.run(record.ctypes.data, 1)
    team.close()
    return scratch.view(np.int32)


def test_reading_adds_up_every_byte() -> None:
    """The sums that `read` leaves are those of all words of memory: none is skipped."""
    memory = allocate(3 * peaks.CHUNK)
    memory[:] = np.random.default_rng(1).integers(0, 256, len(memory), np.uint8)
    found = run(Target.host(), Spec.of(probes.read), memory, 3)
    assert found.sum(dtype=np.int32) == memory.view(np.int32).sum(dtype=np.int32)


def test_dots_are_all_computed() -> None:
    """The sums that `dots` leaves are those of as many products as `dots_of` says."""
    target = Target.host()
    memory = allocate(probes.OPERANDS)
    memory[:] = np.random.default_rng(1).integers(0, 128, len(memory), np.uint8)
    found = run(target, Spec.of(probes.dots), memory, 2)
    side, width = probes.tile(target.registers), target.vector
    steps = probes.OPERANDS // (2 * side * width)
    parts = memory[: steps * 2 * side * width].reshape(steps, 2, side, width // 4, 4).astype(np.int64)
    once = np.einsum("sayz,sbyz->aby", parts[:, 0], parts[:, 1])  # [side, side, lanes]
    totals = (2 * probes.ROUNDS * once).astype(np.int32).reshape(-1)
    np.testing.assert_array_equal(found[: len(totals)], totals)
    products = 2 * probes.ROUNDS * steps * side * side * width
    assert 2 * probes.dots_of(width, target.registers) == 2 * products


def test_peaks_are_found_on_one_thread_and_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The greater of the two is the peak."""
    asked = []

    def reached(compiler: Compiler, threads: int, memory: object) -> tuple[float, float]:
        asked.append(threads)
        return {1: (30.0, 9.0), 3: (40.0, 8.0)}[threads]

    monkeypatch.setattr(peaks, "MEMORY", peaks.CHUNK)
    monkeypatch.setattr(peaks, "reached", reached)
    assert measure_peaks(3) == peaks.Peaks(3, 40.0, 9.0)
    assert asked == [1, 3]


def test_peaks_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short measurement gives rates that a processor can have."""
    monkeypatch.setattr(peaks, "MEMORY", 4 << 20)
    monkeypatch.setattr(peaks, "SECONDS", 0.02)
    found = measure_peaks(1)
    assert 1e8 < found.read < 1e13
    assert 1e8 < found.int8 < 1e14


def test_no_peaks_without_the_cpu_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the backend cannot start, the error says why."""
    from puna import backends

    def fail(*_: object) -> None:
        raise ImportError("no llvmlite here")

    monkeypatch.setattr(backends, "import_module", fail)
    with pytest.raises(BackendError, match="no llvmlite here"):
        measure_peaks()
