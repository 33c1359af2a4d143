"""The kernel language's loops, conditions, variables and what threads share."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
from small_kernels import run, target

from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.lang import Kernel

RANGES = [(0, 5, 1), (3, 17, 4), (5, 5, 1), (6, 5, 1), (-4, 3, 2), (0, 1, 100)]


def visited(write: Any, *numbers: int) -> list[int]:
    """What a kernel `write(k, note, inputs)` notes down, in order."""
    notes, count = np.zeros(256, np.int64), np.zeros(1, np.int64)

    def kernel(k: Kernel, places: Any, used: Any, inputs: Any) -> None:
        def note(value: Any) -> None:
            at = used.load("i64", 1)
            places.at(at * 8).store(k.const("i64", value) if isinstance(value, int) else value)
            used.store(at + 1)

        write(k, note, [inputs.load("i64", 1, 8 * i) for i in range(len(numbers))])

    run(kernel, notes, count, np.array(numbers or [0], np.int64))
    found: list[int] = notes[: count[0]].tolist()
    return found


@pytest.mark.parametrize("bounds", RANGES)
def test_loop_is_range(bounds: tuple[int, int, int]) -> None:
    """`loop` visits what `range` does, with bounds known while it is written or only when it runs."""

    def known(k: Kernel, note: Any, _: Any) -> None:
        for i in k.loop(*bounds):
            note(i)

    def given(k: Kernel, note: Any, inputs: Any) -> None:
        for i in k.loop(*inputs):
            note(i)

    assert visited(known) == visited(given, *bounds) == list(range(*bounds))


def test_loops_nest() -> None:
    """An inner loop starts anew each time, and its bounds may follow the outer one."""

    def write(k: Kernel, note: Any, _: Any) -> None:
        for i in k.loop(0, 4):
            for j in k.loop(i, 4, 2):
                note(i * 10 + j)
            note(i + 100)

    want = [n for i in range(4) for n in [*(i * 10 + j for j in range(i, 4, 2)), i + 100]]
    assert visited(write) == want


def test_python_loops_unroll() -> None:
    """A plain `for` writes its body each time it runs."""

    def write(k: Kernel, note: Any, _: Any) -> None:
        for i in range(3):
            note(i)

    assert visited(write) == [0, 1, 2]


def test_variables_keep_what_was_set() -> None:
    """A variable made outside a loop carries its value from turn to turn and out of it; vectors too."""
    out = np.zeros(4, np.float32)

    def write(k: Kernel, target: Any) -> None:
        total, step = k.var(k.zeros("f32", 4)), k.var(k.const("f32", 1.0, 4))
        for _ in k.loop(0, 5):
            total.set(total.now + step.now)
            step.set(step.now * 2.0)
        target.store(total.now)

    run(write, out)
    assert out.tolist() == [31.0] * 4


def test_a_variable_in_a_loop_starts_anew() -> None:
    """A variable made in a loop's body begins with its first value each turn."""

    def write(k: Kernel, note: Any, _: Any) -> None:
        for i in k.loop(0, 3):
            v = k.var(k.const("i64", 10))
            v.set(v.now + i)
            note(v.now)

    assert visited(write) == [10, 11, 12]


def test_when() -> None:
    """A `when` block runs only if its condition holds, may nest, and may hold loops."""

    def write(k: Kernel, note: Any, _: Any) -> None:
        for i in k.loop(0, 6):
            with k.when(i > 1):
                with k.when(i < 4):
                    note(i)
                for j in k.loop(0, i - 4):
                    note(i * 10 + j)

    assert visited(write) == [2, 3, 50]


def test_repeat() -> None:
    """`repeat` runs until `leave_if` holds; what follows it in the body is left out; the innermost one is left."""

    def write(k: Kernel, note: Any, inputs: Any) -> None:
        outer = k.var(k.zeros("i64"))
        for _ in k.repeat():
            inner = k.var(k.zeros("i64"))
            for _ in k.repeat():
                k.leave_if(inner.now >= outer.now)
                note(outer.now * 10 + inner.now)
                inner.set(inner.now + 1)
            outer.set(outer.now + 1)
            k.leave_if(outer.now > inputs[0])
            note(outer.now + 100)

    assert visited(write, 2) == [101, 10, 102, 20, 21]
    assert visited(write, 0) == []


def test_call_by_address() -> None:
    """A kernel calls another by its address, with addresses and numbers as arguments."""
    compiler = Compiler(target(None), None)

    def add(k: Kernel) -> None:
        place, by = k.args
        place.store(place.load("i64") + by)

    def twice(k: Kernel) -> None:
        function, place = k.args
        for _ in k.loop(0, 2):
            k.call(function, place, k.const("i64", 21))

    specs = [Spec(add, (), ("ptr", "i64")), Spec(twice, (), ("ptr", "ptr"))]
    found, number = compiler.addresses_of(specs), np.zeros(1, np.int64)
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(found[specs[1]])
    native(found[specs[0]], number.ctypes.data)
    assert number[0] == 42


def test_prefetch_changes_nothing() -> None:
    """Asking for memory ahead is allowed anywhere, even where there is none."""
    a = np.arange(16, dtype=np.int32)

    def write(k: Kernel, source: Any) -> None:
        source.prefetch(1 << 40)

    run(write, a)
    assert a.tolist() == list(range(16))


def test_shared_numbers() -> None:
    """`add_shared` and `swap_shared` give what was there before, `load_shared` what is there."""
    shared, out = np.array([5], np.int64), np.zeros(3, np.int64)

    def write(k: Kernel, place: Any, target: Any) -> None:
        target.store(k.add_shared(place, 3))
        target.store(k.swap_shared(place, -1), 8)
        target.store(k.load_shared(place), 16)

    run(write, shared, out)
    assert out.tolist() == [5, 8, -1]


@pytest.mark.parametrize("grain", [1, 7])
def test_threads_claim_each_unit_once(grain: int) -> None:
    """Threads that claim chunks through `add_shared` together take each unit exactly once."""
    units, threads = 20_000, 4
    shared, taken = np.zeros(1, np.int64), np.zeros(units, np.uint8)

    def claim(k: Kernel) -> None:
        counter, marks = k.args
        for _ in k.repeat():
            begin = k.add_shared(counter, grain)
            k.leave_if(begin >= units)
            end = begin + grain
            for unit in k.loop(begin, k.select(end < units, end, k.const("i64", units))):
                marks.at(unit).store(marks.at(unit).load("u8") + 1)

    compiler, spec = Compiler(target(None), None), Spec(claim, (), ("ptr", "ptr"))
    address = compiler.addresses_of([spec])[spec]
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
    workers = [
        threading.Thread(target=native, args=(shared.ctypes.data, taken.ctypes.data)) for _ in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (taken == 1).all()
    assert shared[0] >= units
