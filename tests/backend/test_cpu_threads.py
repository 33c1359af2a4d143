"""Teams of threads: every unit of work once, stages in order, sleep between jobs, and nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from test_cpu_rig import compiler, write_model

from puna.backends.cpu import runner
from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.lang import Kernel
from puna.backends.cpu.memory import allocate
from puna.backends.cpu.threads import Team, default_threads
from puna.errors import BackendError

CORES = os.cpu_count() or 1
TESTS = Path(__file__).resolve().parents[1]


def count(k: Kernel) -> None:
    """Add 1 to number i of the args for each unit i."""
    args, begin, end, _ = k.args
    for i in k.loop(begin, end):
        args.store(args.load("i64", 1, i * 8) + 1, i * 8)


def pass_on(k: Kernel) -> None:
    """args: 0 source, 8 target, 16 length: target[i] = source[length - 1 - i] + 1."""
    args, begin, end, _ = k.args
    source, target, length = args.ptr(0), args.ptr(8), args.load("i64", offset=16)
    for i in k.loop(begin, end):
        target.store(source.load("i64", 1, (length - 1 - i) * 8) + 1, i * 8)


def meet(k: Kernel) -> None:
    """args: 0 counter, 8 threads, 16 result: leave a mark in scratch, wait for all threads, and give the mark found."""
    args, begin, end, scratch = k.args
    for unit in k.loop(begin, end):
        scratch.store(unit)
        k.add_shared(args.ptr(0), 1)
        for _ in k.repeat():
            k.leave_if(k.load_shared(args.ptr(0)) >= args.load("i64", offset=8))
        args.ptr(16).store(scratch.load("i64"), unit * 8)


class Job:
    """Records of a kernel: (args, units, grain, ends) each."""

    def __init__(self, *records: tuple[Spec, int, int, int, int]) -> None:
        self.count = len(records)
        self.memory = allocate(len(records) * runner.RECORD_BYTES).view(np.int64).reshape(-1, 8)
        for row, (spec, args, units, grain, ends) in zip(self.memory, records, strict=True):
            row[:6] = compiler().addresses_of([spec])[spec], args, units, grain, 0, ends

    def run(self, team: Team) -> None:
        team.run(self.memory.ctypes.data, self.count)


@pytest.fixture
def teams() -> Iterator[list[Team]]:
    """Teams that a test made, ended after it."""
    made: list[Team] = []
    yield made
    for team in made:
        team.close()


def team_of(threads: int, teams: list[Team], scratch: int = 64) -> Team:
    teams.append(Team(compiler(), threads, allocate(scratch * threads)))
    return teams[-1]


@pytest.mark.parametrize("threads", [1, 2, 3, 4, CORES + 3])
def test_every_unit_is_run_once(threads: int, teams: list[Team]) -> None:
    """For counts of units and grains that divide and do not, none among them, over many jobs."""
    team, spec = team_of(threads, teams), Spec.of(count)
    sizes = [(0, 1), (1, 1), (1, 8), (7, 2), (64, 4), (61, 7), (3, 1), (1000, 1)]
    data = np.zeros((len(sizes), 1000), np.int64)
    job = Job(
        *((spec, row.ctypes.data, units, grain, 1) for row, (units, grain) in zip(data, sizes, strict=True))
    )
    for _ in range(50):
        job.run(team)
    for row, (units, _) in zip(data, sizes, strict=True):
        assert (row[:units] == 50).all()
        assert not row[units:].any()


@pytest.mark.parametrize("threads", [2, 3, CORES + 2])
def test_a_barrier_parts_two_stages(threads: int, teams: list[Team]) -> None:
    """Each record reads what other threads wrote in the record before, all of it."""
    team, length, steps = team_of(threads, teams), 97, 60
    data = np.zeros((steps + 1, length), np.int64)
    args = np.array([[data[i].ctypes.data, data[i + 1].ctypes.data, length] for i in range(steps)], np.int64)
    job = Job(*((Spec.of(pass_on), args[i].ctypes.data, length, 3, 1) for i in range(steps)))
    for start in range(20):
        data[0] = start + np.arange(length)
        job.run(team)
        ends = data[0] if steps % 2 == 0 else data[0][::-1]
        np.testing.assert_array_equal(data[-1], ends + steps)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_records_of_one_stage_need_no_barrier_between(threads: int, teams: list[Team]) -> None:
    """Three records that end together are each run whole, and each is ready to run again."""
    team, data = team_of(threads, teams), np.zeros((4, 50), np.int64)
    ends = (0, 0, 3, 1)
    job = Job(*((Spec.of(count), row.ctypes.data, 50, 3, end) for row, end in zip(data, ends, strict=True)))
    for _ in range(100):
        job.run(team)
    assert (data == 100).all()


def test_threads_have_scratch_of_their_own(teams: list[Team]) -> None:
    """While all three threads are at work, each finds in its scratch what it left there."""
    team, counter, found = team_of(3, teams), np.zeros(1, np.int64), np.full(3, -1)
    args = np.array([counter.ctypes.data, 3, found.ctypes.data], np.int64)
    job = Job((Spec.of(meet), args.ctypes.data, 3, 1, 1))
    for _ in range(10):
        counter[:], found[:] = 0, -1
        job.run(team)
        assert found.tolist() == [0, 1, 2]


def test_workers_sleep_and_wake(teams: list[Team]) -> None:
    """After a pause the workers take no time, and the next job still runs whole, again and again."""
    team, data = team_of(3, teams), np.zeros(200, np.int64)
    job = Job((Spec.of(count), data.ctypes.data, 200, 1, 1))
    job.run(team)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.1)
    assert time.process_time() - before < 0.05, "the workers go on spinning"
    for rounds, pause in enumerate((0.0, 0.05, 0.0, 0.001, 0.003, 0.01, 0.0), 2):
        time.sleep(pause)
        job.run(team)
        assert (data == rounds).all()


def test_jobs_that_come_as_workers_fall_asleep(teams: list[Team]) -> None:
    """Pauses about as long as the workers wait before they sleep lose no job."""
    team, data = team_of(4, teams), np.zeros(40, np.int64)
    job = Job((Spec.of(count), data.ctypes.data, 40, 1, 1))
    for n in range(200):
        time.sleep(n * 50e-6)
        job.run(team)
    assert (data == 200).all()


def running() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("puna-")}


def test_close_ends_the_workers() -> None:
    """close() joins all workers, awake or asleep, and may be called twice; a dropped team ends by itself."""
    before = running()
    for pause in (0.0, 0.05):
        team = Team(compiler(), 4, allocate(256))
        assert len(running() - before) == 3
        time.sleep(pause)
        team.close()
        assert running() == before
        team.close()
    team = Team(compiler(), 3, allocate(256))
    del team
    gc.collect()
    assert running() == before


def test_teams_come_and_go() -> None:
    """Many short lives, with a job or without, end every time."""
    before, data = running(), np.zeros(10, np.int64)
    job = Job((Spec.of(count), data.ctypes.data, 10, 1, 1))
    for n in range(40):
        team = Team(compiler(), 3, allocate(256))
        if n % 2:
            job.run(team)
        team.close()
    assert running() == before
    assert (data == 20).all()


def test_teams_side_by_side(teams: list[Team]) -> None:
    """Two teams run from two threads at once do not disturb each other."""
    data = np.zeros((2, 500), np.int64)

    def work(n: int) -> None:
        job = Job((Spec.of(count), data[n].ctypes.data, 500, 2, 1))
        team = teams[n]
        for _ in range(100):
            job.run(team)

    for _ in range(2):
        team_of(2, teams)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (data == 100).all()


def in_a_process(code: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run Python code with the tests' modules at hand."""
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS), str(TESTS / "backend")])
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=timeout
    )


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timer")
def test_interrupts_leave_the_team_sound() -> None:
    """Whenever Ctrl-C comes, the next job runs whole, and the process ends."""
    result = in_a_process(
        """
        import faulthandler, signal, sys
        import numpy as np
        from test_cpu_threads import Job, Spec, count, Team, compiler, allocate

        armed = []

        def interrupt(*_):
            if armed:
                raise KeyboardInterrupt

        faulthandler.dump_traceback_later(90, exit=True)
        signal.signal(signal.SIGALRM, interrupt)
        team, data = Team(compiler(), 2, allocate(128)), np.zeros(64, np.int64)
        job = Job(*[(Spec.of(count), data.ctypes.data, 64, 4, 1)] * 3)
        for n in range(1200):
            try:
                armed.append(n)
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + n % 60))
                job.run(team)
                armed.clear()
            except KeyboardInterrupt:
                armed.clear()
            data[:] = 0
            job.run(team)
            if (data != 3).any():
                sys.exit(f"after {n} interrupts units were run {set(data.tolist())} times, not 3")
        """
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system does not limit a process to some cores"
)
def test_default_threads_keep_to_the_cores_allowed() -> None:
    """A process that may use one core starts one thread."""
    assert default_threads() >= 1
    result = in_a_process(
        """
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        from puna.backends.cpu.threads import default_threads
        print(default_threads())
        """
    )
    assert (result.stdout, result.stderr) == ("1\n", "")


def test_threads_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a thread cannot start, those that did are ended, and the error says how many there are."""
    start, names = threading.Thread.start, {thread.name for thread in threading.enumerate()}

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "puna-3":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(BackendError, match=r"gives 3 of 5 threads.*\(-t\)"):
        Team(compiler(), 5, allocate(0))
    assert {thread.name for thread in threading.enumerate()} <= names


def test_a_daemon_at_work_does_not_keep_the_process(tmp_path: Path) -> None:
    """A process ends while a thread of it computes."""
    path = write_model(tmp_path / "m.gguf", "llama", "Q8_0")
    result = in_a_process(
        f"""
        import threading, time
        import puna
        model = puna.load({str(path)!r}, backend="cpu", threads=2)

        def work():
            while True:
                model.logits(list(range(60)))

        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
        """,
        timeout=60,
    )
    assert result.returncode == 0
    assert "malloc" not in result.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_has_threads_of_its_own(tmp_path: Path) -> None:
    """A model that was loaded before a fork runs in the child too, to the same bits, and ends with it."""
    path = write_model(tmp_path / "m.gguf", "llama", "Q8_0")
    result = in_a_process(
        f"""
        import os, sys
        import puna
        model = puna.load({str(path)!r}, backend="cpu", threads=2)
        want = model.logits(list(range(60)))
        child = os.fork()
        if child == 0:
            sys.exit(0 if (model.logits(list(range(60))) == want).all() else 3)
        _, status = os.waitpid(child, 0)
        assert (model.logits(list(range(60))) == want).all()
        sys.exit(os.waitstatus_to_exitcode(status))
        """,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")
