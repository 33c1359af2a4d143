"""The native loops that run a plan: threads claim chunks of a record, then meet at a barrier; no Python between.

Memory that the threads share, in i64 and addresses:

    record (64 bytes)   0 kernel   8 args   16 units of work   24 grain: units a claim   32 next: first unclaimed unit
                        40 ends: how many records, this one last, end here at a barrier; 0 goes on without one
                        48 ahead, 56 bytes: memory that is read after the barrier, for who waits to ask for it
    job (256 bytes)     0 records   8 count of records   16 threads   24 yield: a C function that gives up the core
                        32 spins: looks at a barrier before the core is given up
                        40 waits: looks for a new job before a worker goes to sleep
                        64 arrived: threads at the barrier   128 phase: barriers passed
                        192 ticket: jobs posted so far   200 done: those that the poster has run to their end
    nap (64 bytes, one a worker)   0 asleep: 1 while the worker waits in Python
"""

from __future__ import annotations

from puna.backends.cpu.lang import Kernel, Ptr, Value

__all__ = ["JOB_BYTES", "NAP_BYTES", "RECORD_BYTES", "rouse", "run", "serve", "spin", "start"]

RECORD_BYTES, JOB_BYTES, NAP_BYTES = 64, 256, 64
ARRIVED, PHASE, TICKET, DONE = 64, 128, 192, 200
LINES, LINE = 4, 64  # cache lines that a waiting thread asks for between two looks, and their bytes


def run(k: Kernel) -> None:
    """run(job, scratch): the poster's share of all records of a job."""
    job, scratch = k.args
    ticket = k.load_shared(job.at(TICKET))
    work(k, job, scratch)
    job.store(ticket, DONE, 8)


def work(k: Kernel, job: Ptr, scratch: Ptr) -> None:
    records, threads = job.ptr(0), job.load("i64", offset=16, align=8)
    for i in k.loop(0, job.load("i64", offset=8, align=8)):
        record = records.at(i * RECORD_BYTES)
        kernel, args = record.ptr(0), record.ptr(8)
        units, grain = record.load("i64", offset=16, align=8), record.load("i64", offset=24, align=8)
        for _ in k.repeat():
            begin = k.add_shared(record.at(32), grain)
            k.leave_if(begin >= units)
            end = begin + grain
            k.call(kernel, args, begin, k.select(end < units, end, units), scratch)
        ends = record.load("i64", offset=40, align=8)
        with k.when(ends > 0):
            barrier(k, job, record, ends, threads)


def barrier(k: Kernel, job: Ptr, record: Ptr, ends: Value, threads: Value) -> None:
    """Wait for all threads. The last to come makes the records ready for their next run and lets the others go."""
    phase = k.load_shared(job.at(PHASE))
    arrived = k.add_shared(job.at(ARRIVED), 1)
    is_last = arrived + 1 >= threads
    with k.when(is_last):
        for i in k.loop(0, ends):
            k.swap_shared(record.at(k.const("i64", 32) - i * RECORD_BYTES), 0)
        k.swap_shared(job.at(ARRIVED), 0)
        k.add_shared(job.at(PHASE), 1)
    with k.when(arrived + 1 < threads):
        spins, fetched = k.var(k.zeros("i64")), k.var(k.zeros("i64"))
        ahead, ahead_bytes = record.ptr(48), record.load("i64", offset=56, align=8)
        for _ in k.repeat():
            k.leave_if(k.load_shared(job.at(PHASE)).compare("!=", phase))
            with k.when(fetched.now < ahead_bytes):
                for line in range(LINES):
                    ahead.prefetch(fetched.now + line * LINE, level=2)
                fetched.set(fetched.now + LINES * LINE)
            with k.when(fetched.now >= ahead_bytes):
                pause(k)
            spins.set(spins.now + 1)
            with k.when(spins.now > job.load("i64", offset=32, align=8)):
                k.call(job.ptr(24))


def pause(k: Kernel) -> None:
    """Tell the core that this is a waiting loop."""
    names = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.hint", (1,))}
    if k.target.family in names:
        name, args = names[k.target.family]
        k.procedure(name, *(k.const("i32", arg) for arg in args))


def spin(k: Kernel) -> None:
    """spin(looks): as long as a worker takes for so many looks."""
    (looks,) = k.args
    for _ in k.loop(0, looks):
        pause(k)


def rouse(k: Kernel) -> None:
    """rouse(naps, workers, awake): set awake[w] for each worker that sleeps and must be signalled."""
    naps, workers, awake = k.args
    note_sleepers(k, naps, workers, awake)


def note_sleepers(k: Kernel, naps: Ptr, workers: Value, awake: Ptr) -> Value:
    """Take back the nap flags; how many workers wait for a signal, those of earlier calls among them."""
    asleep = k.var(k.zeros("i64"))
    for w in k.loop(0, workers):
        waits = awake.load("i64", 1, w * 8, 8) | k.swap_shared(naps.at(w * NAP_BYTES), 0)
        awake.store(waits, w * 8, 8)
        asleep.set(asleep.now + waits)
    return asleep.now


def start(k: Kernel) -> None:
    """start(job, naps, workers, awake, scratch): post a job and take part in it, unless a worker sleeps after all.

    Then the caller must signal it and call `run`. To Python this is one step, so no interrupt can part the two.
    """
    job, naps, workers, awake, scratch = k.args
    ticket = k.add_shared(job.at(TICKET), 1) + 1
    asleep = note_sleepers(k, naps, workers, awake)
    with k.when(asleep < 1):
        work(k, job, scratch)
        job.store(ticket, DONE, 8)


def serve(k: Kernel) -> None:
    """serve(job, nap, seen, scratch): a worker's life. Runs each job as it is posted; returns to sleep.

    seen holds the last ticket run. The worker returns with its nap flag set, or cleared by a `rouse` or `start` that
    will wake it, and must then wait for that. A job without records ends the worker: Python sees it and stops calling.
    """
    job, nap, seen, scratch = k.args
    waits = job.load("i64", offset=40, align=8)
    for _ in k.repeat():
        looks = k.var(k.zeros("i64"))
        for _ in k.repeat():
            looks.set(looks.now + 1)
            posted = k.load_shared(job.at(TICKET)).compare("!=", seen.load("i64", align=8))
            k.leave_if(k.either(posted, looks.now > waits))
            pause(k)
        with k.when(looks.now > waits):
            k.swap_shared(nap, 1)
        posted = k.load_shared(job.at(TICKET)).compare("!=", seen.load("i64", align=8))
        # A job that came while the flag was being set: take the flag back, unless the poster took it first.
        late = k.var(k.const("i64", 0))
        with k.when(looks.now > waits):
            late.set(k.const("i64", 1))
            with k.when(posted):
                late.set(k.const("i64", 1) - k.swap_shared(nap, 0))
        k.leave_if(late.now > 0)
        seen.store(seen.load("i64", align=8) + 1, 0, 8)
        count = job.load(
            "i64", offset=8, align=8
        )  # before the work: the next job may be posted right after it
        work(k, job, scratch)
        k.leave_if(count <= 0)
