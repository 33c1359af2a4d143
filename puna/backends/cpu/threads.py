"""Threads that run jobs: the caller's own and some workers, which spin briefly between jobs and then sleep."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Hashable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from puna.backends.cpu import runner
from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.memory import ALIGN, allocate
from puna.backends.cpu.pace import Pace
from puna.errors import BackendError

__all__ = ["Team", "default_threads"]

RUN = Spec(runner.run, (), ("ptr", "ptr"))
ROUSE = Spec(runner.rouse, (), ("ptr", "i64", "ptr"))
START = Spec(runner.start, (), ("ptr", "ptr", "i64", "ptr", "ptr"))
SERVE = Spec(runner.serve, (), ("ptr", "ptr", "ptr", "ptr"))
POINTER = ctypes.c_void_p
SPIN = Spec(runner.spin, (), ("i64",))
# Seconds at a barrier before the core is given up, by threads that have one each and by those that do not.
PATIENT, HASTY = 2.4e-3, 12e-6
AWAKE = 2.4e-3  # seconds that a worker looks out for a new job before it sleeps
LAST_STEP = 10.0  # seconds that the end of a process waits for a step
TRIAL = 20_000  # looks that are timed, once a compiler


class Shared:
    """What the caller and its workers share: the job, a nap flag and a signal for each worker, the native loops."""

    def __init__(self, compiler: Compiler, threads: int) -> None:
        self.compiler = compiler  # the code must outlive the threads that run it
        found = compiler.addresses_of([RUN, ROUSE, START, SERVE])
        self.run = ctypes.CFUNCTYPE(None, POINTER, POINTER)(found[RUN])
        self.rouse = ctypes.CFUNCTYPE(None, POINTER, ctypes.c_int64, POINTER)(found[ROUSE])
        self.start = ctypes.CFUNCTYPE(None, POINTER, POINTER, ctypes.c_int64, POINTER, POINTER)(found[START])
        self.serve = ctypes.CFUNCTYPE(None, *[POINTER] * 4)(found[SERVE])
        self.memory = allocate(runner.JOB_BYTES + runner.NAP_BYTES * threads)
        self.job = self.memory[: runner.JOB_BYTES].view(np.int64)
        self.job[2], self.job[3] = threads, yield_address()
        # A core given up on a busy machine is gone for milliseconds: that is for threads without one of their own.
        rate = looks_a_second(compiler)
        self.job[4] = int(rate * (PATIENT if threads <= cores() else HASTY))
        self.job[5] = int(rate * AWAKE)
        self.lock, self.process = threading.Lock(), os.getpid()
        self.naps = [
            self.memory.ctypes.data + runner.JOB_BYTES + i * runner.NAP_BYTES for i in range(threads)
        ]
        self.awake = np.zeros(threads, np.int64)
        # Locks that are held until a worker is signalled: an interrupt cannot come in the middle of one's methods.
        self.signals = [threading.Lock() for _ in range(threads - 1)]
        for signal in self.signals:
            signal.acquire()
        self.scratch = [0] * threads

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data)

    def work_out(self, records: int, count: int) -> None:
        """Wake who sleeps, post a job, and take part until it is done.

        Whenever an interrupt comes, the job is either not posted or done: `start` is one step, unless a worker fell
        asleep just before it. What an interrupt leaves posted even so is done at the next call: what it writes to must
        live until then.
        """
        with self.lock:
            self.post(records, count)

    def post(self, records: int, count: int) -> None:
        self.finish()
        self.job[0], self.job[1] = records, count
        self.rouse(self.naps[0], len(self.signals), self.awake.ctypes.data)
        self.wake()
        try:
            self.start(self.address, self.naps[0], len(self.signals), self.awake.ctypes.data, self.scratch[0])
        finally:
            self.finish()

    def finish(self) -> None:
        """Take part in a job that is posted and not done."""
        if self.job[runner.TICKET // 8] != self.job[runner.DONE // 8]:
            self.wake()
            self.run(self.address, self.scratch[0])

    def wake(self) -> None:
        """Signal the workers that were found asleep; a signal too many does no harm."""
        for worker, signal in enumerate(self.signals):
            if self.awake[worker]:
                with suppress(RuntimeError):  # it is signalled already
                    signal.release()
                self.awake[worker] = 0

    def work(self, worker: int) -> None:
        """The life of a worker thread."""
        seen = np.zeros(1, np.int64)
        while True:
            self.serve(self.address, self.naps[worker], seen.ctypes.data, self.scratch[worker + 1])
            if seen[0] == self.job[runner.TICKET // 8] and self.job[1] == 0 and seen[0] > 0:
                return
            self.signals[worker].acquire()

    def stop(self, workers: list[threading.Thread]) -> None:
        """A job without records ends the workers; whoever comes with a job after it waits for ever.

        At exit a daemon may still be at work: it must not be in the code when that is taken down. A process that was
        forked does not have the workers.
        """
        if os.getpid() != self.process or not self.lock.acquire(timeout=LAST_STEP):
            return
        # Nor may it be in LLVM; from there it goes no further than to a job.
        if self.compiler.lock.acquire(timeout=LAST_STEP):
            self.compiler.lock.release()
        self.post(0, 0)
        for worker in workers:
            worker.join()


class Team:
    """`threads` threads, the caller's among them. Used by one caller at a time; `close` ends the workers.

    On a busy machine the caller goes on alone for a while: see `Pace`.
    """

    def __init__(self, compiler: Compiler, threads: int, scratch: NDArray[np.uint8]) -> None:
        """scratch: memory of the kernels' own, shared out evenly."""
        self.compiler, self.threads, self.scratch = compiler, threads, scratch
        self.pace = Pace()
        self.start()

    def start(self) -> None:
        each = len(self.scratch) // self.threads // ALIGN * ALIGN
        places = [self.scratch.ctypes.data + i * each for i in range(self.threads)]
        self.shared, self.alone = Shared(self.compiler, self.threads), Shared(self.compiler, 1)
        self.alone.lock = self.shared.lock
        self.shared.scratch[:], self.alone.scratch[:] = places, places[:1]
        workers = started(self.shared, self.threads - 1)
        self.close = weakref.finalize(self, self.shared.stop, workers)

    def renew(self) -> bool:
        """In a process that was forked, start threads of its own; whether that was so."""
        if self.shared.process == os.getpid():
            return False
        self.close.detach()
        self.start()
        return True

    def run(self, records: int, count: int, kind: tuple[Hashable, ...] | None = None) -> None:
        """Run `count` records from the address `records` on.

        kind: of step, its rows first; steps of a kind take about as long.
        """
        if kind is None or self.threads == 1:
            self.shared.work_out(records, count)
            return
        is_alone, begin, held = self.pace.is_alone(kind), time.perf_counter(), time.thread_time()
        if is_alone:
            self.shared.finish()  # what an interrupt may have left
        (self.alone if is_alone else self.shared).work_out(records, count)
        self.pace.note(kind, is_alone, time.perf_counter() - begin, time.thread_time() - held)


def looks_a_second(compiler: Compiler) -> float:
    """How often a waiting thread looks, timed once for a compiler: a pause takes 5 to 140 cycles, by processor."""
    if not compiler.looks:
        spin = ctypes.CFUNCTYPE(None, ctypes.c_int64)(compiler.addresses_of([SPIN])[SPIN])
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            spin(TRIAL)
            times.append(time.perf_counter() - begin)
        compiler.looks = TRIAL / min(times)
    return compiler.looks


def started(shared: Shared, count: int) -> list[threading.Thread]:
    """Worker threads, running. Raises BackendError, with none left behind, where the system does not give them all."""
    workers: list[threading.Thread] = []
    for i in range(count):
        worker = threading.Thread(target=shared.work, args=(i,), name=f"puna-{i + 1}", daemon=True)
        try:
            worker.start()
        except RuntimeError as error:
            shared.stop(workers)
            what = f"the system gives {i + 1} of {count + 1} threads: {error}"
            raise BackendError(what, fix="ask for fewer (-t)") from error
        workers.append(worker)
    return workers


def yield_address() -> int:
    """A C function without arguments that lets another thread have the core."""
    if sys.platform == "win32":
        function = ctypes.windll.kernel32.SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    address = ctypes.cast(function, POINTER).value
    assert address is not None
    return address


def cores() -> int:
    """Cores, hardware threads among them, that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads() -> int:
    """Physical cores, as far as this process may use them."""
    import psutil

    allowed = cores()
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
