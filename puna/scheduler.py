"""Many texts through one model: each step computes a little of all of them.

Texts go by age. A step has a row of each that runs, then more of the oldest prompts, up to n_batch rows; logits do not
depend on what else is in a step, so each text is what it would be alone.

Memory is shared, too. A text starts where its prompt fits and all that run, itself included, have a page each to grow
into; who came first starts first. Where a step finds no room after all, the newest that runs is paused, and the next
newest, until the others can go on. So any text makes way for older ones, the oldest for none, and each comes to its
end. A paused text waits in a file, or is computed again as far as its pages were needed (`puna.swapping`); it goes on
when it could start.

An error within one text, as in its sampler, ends that text alone: its state is "over", and who reads it gets the error
after what was written before. A step that fails ends all texts that it computed, for none of them can go on; those that
wait are started next. An interrupt ends none: they go on when one of them is read again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from puna.cache import NoRoomError
from puna.cache import Sequence as CacheSequence
from puna.errors import RequestError
from puna.generation import Generation, Writer
from puna.steps import Steps
from puna.swapping import Swap, Swapped

__all__ = ["Report", "Request", "Scheduler", "Stream"]


@dataclass(eq=False)
class Request:
    """A text and where it stands.

    sequence: while it runs.  swapped: the file that it waits in.  held: tokens that its sequence had when it was
    paused; None before the first step.  pieces: text that nobody has read yet.  error: what ended it.
    """

    writer: Writer
    sequence: CacheSequence | None = None
    swapped: Swapped | None = None
    held: int | None = None
    pieces: deque[str] = field(default_factory=deque)
    error: Exception | None = None
    dropped: bool = False
    over: bool = False

    @property
    def state(self) -> str:
        """ "waiting" before its first step, "running", "paused" or "over"."""
        if self.over:
            return "over"
        if self.sequence is not None:
            return "running"
        return "waiting" if self.held is None else "paused"


@dataclass(frozen=True)
class Report:
    """How a scheduler stands.

    running, waiting, paused: texts.  pages: of each group of layers, how many are held, and how many there are.
    pauses, recomputed, swapped: of all texts so far, as in their timings.  notes: what went wrong on the way.
    """

    running: int
    waiting: int
    paused: int
    pages: tuple[tuple[int, int], ...]
    pauses: int
    recomputed: int
    swapped: int
    notes: tuple[str, ...]


class Scheduler:
    """Streams that are written together. Whoever asks for the next piece of one runs steps, for all.

    Streams can be read from one thread or several. At the end of `with`, or `close`, all that is not finished ends.
    """

    def __init__(
        self,
        steps: Steps,
        writer: Callable[..., Writer],
        *,
        swap: str = "auto",
        folder: str | Path | None = None,
    ) -> None:
        self.steps, self.cache, self.writer, self.swap = steps, steps.cache, writer, Swap(steps, swap, folder)
        self.requests: list[Request] = []  # the oldest first; none that is over
        self.changed = threading.Condition()
        self.stepper: int | None = None  # the thread that runs a step now
        self.closed = False
        self.rate = 0.0  # most tokens that were computed in a second
        self.pauses = self.recomputed = self.swapped = 0
        self.refused: list[Request] = []  # who had to wait, and who ran then
        self.refused_at: list[int] = []  # the room that there was

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stream(self, prompt: str | Sequence[int], n_predict: int = 32, **options: Any) -> Stream:
        """As `Model.stream`, but for `sequence`: written together with the others, from now on.

        Raises RequestError for a prompt that could not run alone either.
        """
        room = self.cache.room(None, self.sequences)
        request = Request(self.writer(prompt, n_predict, room, **options))
        with self.changed:
            if self.closed:
                raise RequestError("the scheduler is closed", fix="take another")
            self.requests.append(request)
        return Stream(self, request)

    def close(self) -> None:
        """End all streams and give their room back. Those that are not finished say so when they are read."""
        with self.changed:
            self.closed = True
            for request in list(self.requests):
                request.error = RequestError("its scheduler was closed before the text was finished")
                request.dropped = True
            while self.stepper not in (None, threading.get_ident()):
                self.changed.wait()
            self.sweep()

    @property
    def report(self) -> Report:
        """How it stands now."""
        states = [request.state for request in list(self.requests)]
        pages = tuple((pool.count - pool.room, pool.count) for pool in self.cache.pools)
        return Report(
            running=states.count("running"),
            waiting=states.count("waiting"),
            paused=states.count("paused"),
            pages=pages,
            pauses=self.pauses,
            recomputed=self.recomputed,
            swapped=self.swapped,
            notes=tuple(self.swap.notes),
        )

    @property
    def running(self) -> list[Request]:
        return [request for request in list(self.requests) if request.sequence is not None]

    @property
    def sequences(self) -> list[CacheSequence]:
        return [sequence for request in list(self.requests) if (sequence := request.sequence) is not None]

    def next_piece(self, request: Request) -> str | None:
        """Text of a request, after as many steps as it takes; None at its end. One thread steps, others wait for it."""
        while True:
            mine = False
            try:
                with self.changed:
                    if self.stepper == threading.get_ident():
                        raise RequestError(
                            "a step cannot wait for another", fix="read streams outside of samplers"
                        )
                    while self.stepper and not (request.pieces or request.over):
                        self.changed.wait()
                    if request.pieces:
                        return request.pieces.popleft()
                    if request.over:
                        error, request.error = request.error, None
                        if error:
                            raise error
                        return None
                    mine, self.stepper = True, threading.get_ident()
                self.step()
            finally:
                if mine:
                    with self.changed:
                        self.stepper = None
                        self.sweep()

    def drop(self, request: Request) -> None:
        """Nobody will read it any more."""
        with self.changed:
            request.dropped = True
            self.sweep()

    def sweep(self) -> None:
        """End what was dropped, unless a step is running: then that comes after it."""
        if self.stepper is None:
            for request in list(self.requests):
                if request.dropped:
                    self.end(request)
            self.changed.notify_all()

    def end(self, request: Request) -> None:
        if request.sequence is not None:
            self.cache.close(request.sequence)
        if request.swapped is not None:
            request.swapped.close()
        request.sequence, request.swapped, request.over = None, None, True
        if request in self.requests:
            self.requests.remove(request)

    @contextmanager
    def ending(self, request: Request) -> Iterator[None]:
        """What fails in here ends this text alone."""
        try:
            yield
        except Exception as error:
            request.error = error
            self.end(request)

    def step(self) -> None:
        """Compute a little of each text that runs."""
        for request in list(self.requests):
            if request.sequence is None:
                with self.ending(request):
                    if not self.fits(request):
                        break
                    self.start(request)
        parts = self.parts()
        while parts:
            rows = np.cumsum([len(ids) for _, ids, _ in parts]) - 1
            last = [int(row) for row, (*_, is_last) in zip(rows, parts, strict=True) if is_last]
            out = np.empty((len(last), self.steps.n_vocab), np.float32)
            started = time.perf_counter()
            try:
                self.steps.compute([(sequence_of(request), ids) for request, ids, _ in parts], last, out)
            except NoRoomError as error:
                self.make_way(error)
                parts = [part for part in parts if part[0].sequence is not None]
                continue
            except Exception as error:
                for request, *_ in parts:
                    request.error = error
                    self.end(request)
                return
            self.rate = max(self.rate, int(rows[-1] + 1) / (time.perf_counter() - started))
            for request, logits in zip((part[0] for part in parts if part[2]), out, strict=True):
                self.take(request, logits)
            return

    def fits(self, request: Request) -> bool:
        """Whether a text can start beside those that run, each with a page to grow into."""
        running, rooms = self.running, self.cache.rooms
        if not running:
            return True
        if [request, *running] == self.refused and all(map(int.__le__, rooms, self.refused_at)):
            return False  # nothing was let go of since
        sequence = self.cache.open()
        try:
            request.writer.cut(sequence)
            writers = {sequence_of(other): other.writer for other in running} | {sequence: request.writer}
            goals = {one: self.goal(writer) for one, writer in writers.items()}
            left = sum(len(writer.text) - len(one) for one, writer in writers.items())
            fits = self.cache.can_grow(goals, min(left, self.steps.plan.tokens))
        finally:
            self.cache.close(sequence)
        self.refused, self.refused_at = [] if fits else [request, *running], self.cache.rooms
        return fits

    def goal(self, writer: Writer) -> int:
        """The length that a text will have a page later."""
        return min(self.steps.n_ctx, len(writer.text) + self.cache.layout.page)

    def start(self, request: Request) -> None:
        """Give a text a sequence, with all that is left of it."""
        sequence, writer = None, request.writer
        with self.ending(request):
            if request.swapped is not None:
                sequence, request.swapped = self.swap.back(request.swapped), None
            request.sequence = self.cache.open() if sequence is None else sequence
            if request.held is None:
                writer.begin(request.sequence)
                request.held = 0
            elif sequence is None:
                again = max(0, request.held - writer.cut(request.sequence)[0])
                writer.timings.recomputed += again
                self.recomputed += again

    def parts(self) -> list[tuple[Request, list[int], bool]]:
        """What the next step computes of whom, and whether that is all that is wanted of it."""
        wanted: list[tuple[Request, list[int]]] = []
        sequences = self.sequences
        for request in self.running:
            with self.ending(request):
                if ids := request.writer.wanted(sequence_of(request), sequences):
                    wanted.append((request, ids))
                else:
                    self.finish(request)
        left, most = self.steps.plan.tokens, list[int]()
        wanted = wanted[:left]
        left -= len(wanted)
        for request, ids in wanted:
            sequence = sequence_of(request)
            encoded = max(0, sequence.border - len(sequence))  # in a step of their own
            most.append(encoded + 1 + min(left, len(ids) - encoded - 1))
            left -= most[-1] - encoded - 1
        return [(r, ids[:count], count == len(ids)) for (r, ids), count in zip(wanted, most, strict=True)]

    def take(self, request: Request, logits: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """The next token of a text, and the text's end where that was the last."""
        with self.ending(request):
            if piece := request.writer.take(logits):
                request.pieces.append(piece)
            if request.writer.finish_reason is not None:
                self.finish(request)

    def finish(self, request: Request) -> None:
        if rest := request.writer.rest():
            request.pieces.append(rest)
        self.end(request)

    def make_way(self, error: NoRoomError) -> None:
        """Pause the newest text. The only one can have no more room than others of the model leave it."""
        *older, request = self.running
        if older:
            with self.ending(request):
                self.pause(request)
        elif request.writer.ids:
            request.writer.finish_reason = "length"
            self.finish(request)
        else:
            request.error = error
            self.end(request)

    def pause(self, request: Request) -> None:
        sequence = sequence_of(request)
        request.swapped, request.held = self.swap.leave(sequence, self.rate), len(sequence)
        request.sequence = None
        self.cache.close(sequence)
        self.pauses += 1
        request.writer.timings.pauses += 1
        if request.swapped:
            self.swapped += request.swapped.nbytes
            request.writer.timings.swapped += request.swapped.nbytes


def sequence_of(request: Request) -> CacheSequence:
    """That of a request that runs."""
    assert request.sequence is not None
    return request.sequence


class Stream(Generation):
    """One of the texts of a scheduler."""

    def __init__(self, scheduler: Scheduler, request: Request) -> None:
        self.scheduler, self.request, self.writer = scheduler, request, request.writer
        self.closed = False

    def __next__(self) -> str:
        piece = None if self.closed else self.scheduler.next_piece(self.request)
        if piece is None:
            raise StopIteration
        return piece

    def __del__(self) -> None:
        self.scheduler.drop(self.request)

    def close(self) -> None:
        """Stop early and give the cache back, where a step is running, after that."""
        self.closed = True
        self.scheduler.drop(self.request)

    @property
    def state(self) -> str:
        """ "waiting" for its first step, "running", "paused" for want of memory, or "over"."""
        return self.request.state
