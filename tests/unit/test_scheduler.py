"""Many texts through one model: each is what it would be alone, whoever has to wait, and all memory comes back."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from cache_accounts import accounts, nothing_held
from endless_models import letters, load_endless
from tiny_model import write_tiny

import puna
from puna.errors import RequestError
from puna.gguf import Value, ValueType

# All positions; every other layer a window; the first a state.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3": {"gemma3.attention.sliding_window_pattern": Value(ValueType.UINT32, 2)},
    "lfm2": {},
}
IDS = np.random.default_rng(3).integers(0, 250, 900).tolist()
# Beginning, length of the prompt, tokens to write, seed, for a context of 256; twice as long for one of 512.
TEXTS = [
    (0, 50, 130, 1),
    (300, 60, 190, 3),
    (0, 150, 60, 2),
    (0, 70, 100, 4),
    (100, 20, 90, 5),
    (400, 9, 120, 6),
]


@pytest.fixture(scope="module", autouse=True)
def code_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are kept in a folder of these tests."""
    folder = tmp_path_factory.mktemp("code")
    with mock.patch("platformdirs.user_cache_path", return_value=folder):
        yield


class Heard:
    """A sampler that keeps the logits it is given."""

    def __init__(self) -> None:
        self.logits: list[bytes] = []

    def __call__(self, logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
        self.logits.append(logits.tobytes())
        return logits


class Alone:
    """A model of a kind on the cpu backend, whose texts are known."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = write_tiny(path, architecture=kind, metadata=KINDS[kind])
        self.times = 2 if kind == "gemma3" else 1  # so that windows are shorter than texts
        model = self.load()
        self.texts, self.logits, self.ids = list[str](), list[list[bytes]](), list[list[int]]()
        for n in range(len(TEXTS)):
            heard = Heard()
            stream = model.stream(**self.asked(n, samplers=(heard, "temperature")))
            self.texts.append("".join(stream))
            self.ids.append(stream.ids)
            self.logits.append(heard.logits)

    def load(self, n_ctx: int = 256, n_batch: int = 64) -> puna.Model:
        """A model whose cache has room for one or two texts."""
        how: dict[str, Any] = {"n_batch": n_batch, "parallel": 2, "threads": 1}
        return puna.load(self.path, backend="cpu", n_ctx=n_ctx * self.times, **how)

    def asked(self, n: int, **more: Any) -> dict[str, Any]:
        """What a stream of text n is called with: all that the model may say, it can say."""
        start, length, count, seed = TEXTS[n]
        return {
            "prompt": IDS[start : start + length * self.times],
            "n_predict": count * self.times,
            "seed": seed,
            "ignore_eos": True,
            "samplers": ("temperature",),
            **more,
        }


@pytest.fixture(scope="module", params=KINDS)
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone") / "m.gguf", request.param)


@pytest.fixture
def endless(tmp_path: Path) -> puna.Model:
    return load_endless(tmp_path)


@pytest.mark.parametrize("swap", ["always", "never"])
def test_the_bits_of_texts_alone(alone: Alone, swap: str) -> None:
    """Texts that together need more pages than there are pause, and have the logits that each has alone."""
    model, heard = alone.load(), [Heard() for _ in TEXTS]
    with model.scheduler(swap=swap) as scheduler:
        streams = [
            scheduler.stream(**alone.asked(n, samplers=(one, "temperature"))) for n, one in enumerate(heard)
        ]
        assert {stream.state for stream in streams} == {"waiting"}
        assert ["".join(stream) for stream in streams] == alone.texts
        report = scheduler.report
    assert [stream.ids for stream in streams] == alone.ids
    assert [one.logits for one in heard] == alone.logits
    assert {stream.finish_reason for stream in streams} == {"length"}
    times = [stream.timings for stream in streams]
    assert times[0].pauses == 0
    assert report.pauses == sum(t.pauses for t in times) > 0
    assert (report.swapped > 0) == (swap == "always")
    assert report.swapped == sum(t.swapped for t in times)
    assert report.recomputed == sum(t.recomputed for t in times)
    assert (report.recomputed > 0) == (swap == "never")
    assert (report.running, report.waiting, report.paused) == (0, 0, 0)
    nothing_held(model)


def test_with_room_nobody_pauses(alone: Alone) -> None:
    """Where all fits, all run from the first step on, and what begins the same is computed once."""
    model = alone.load(n_ctx=2048, n_batch=512)
    texts = 0, 2, 3
    with model.scheduler() as scheduler:
        streams = [scheduler.stream(**alone.asked(n)) for n in texts]
        next(streams[1])
        assert [stream.state for stream in streams] == ["running"] * 3
        assert [len(stream.ids) > 0 for stream in streams] == [True] * 3
        assert scheduler.report.pauses == 0
    how = alone.asked(2)
    prompts = [IDS[:30], how.pop("prompt")]
    assert model.generate_all(prompts, **how)[1] == alone.texts[2]
    nothing_held(model)


def test_what_parallel_has_room_for(alone: Alone) -> None:
    """As many run as there are slots for states, or pages of windows; the others start when one ends."""
    model = alone.load(n_ctx=2048)
    with model.scheduler() as scheduler:
        streams = [scheduler.stream(IDS[n:][:9], 5 + n, ignore_eos=True) for n in range(9)]
        next(streams[0])
        assert scheduler.report.running == (9 if "llama" in model.config.architecture else 3)
        for stream in streams:
            list(stream)
    assert [len(stream.ids) for stream in streams] == [5 + n for n in range(9)]
    nothing_held(model)


@pytest.mark.parametrize("swap", ["always", "never"])
def test_random_use(alone: Alone, swap: str) -> None:
    """Whoever comes, reads, leaves or is forgotten, in any order: what is written is right, and all pages come back."""
    rng, model = random.Random(swap), alone.load()
    scheduler = model.scheduler(swap=swap)
    # The first two grow beyond the cache, and are read to the end.
    streams = [(n, scheduler.stream(**alone.asked(n)), list[str]()) for n in (0, 1)]
    for _ in range(100):
        action = rng.choice(["new", "read", "read", "read", "read", "leave"])
        if action == "new" and len(streams) < 7:
            n = rng.randrange(len(TEXTS))
            streams.append((n, scheduler.stream(**alone.asked(n)), []))
        elif action == "read":
            n, stream, got = rng.choice(streams)
            got += [next(stream, "") for _ in range(rng.randrange(20))]
            assert alone.texts[n].startswith("".join(got))
        elif action == "leave" and len(streams) > 2:
            _, stream, _ = streams.pop(rng.randrange(2, len(streams)))
            if rng.random() < 0.5:
                stream.close()
            del stream
        accounts(model.cache)
        assert len(scheduler.requests) == sum(stream.state != "over" for _, stream, _ in streams)
    for n, stream, got in streams:
        assert "".join([*got, *stream]) == alone.texts[n]
    assert scheduler.report.pauses > 0
    nothing_held(model)


def test_the_oldest_goes_on(endless: puna.Model) -> None:
    """While a text that fills the context runs, others wait; they come to their end in the order they came."""
    with endless.scheduler() as scheduler:
        streams = [
            scheduler.stream("a", 200, temp=0),
            *(scheduler.stream("b", 190, temp=0) for _ in range(4)),
        ]
        order = list[int]()
        while len(order) < len(streams):
            next(streams[-1], "")
            order += [n for n, s in enumerate(streams) if s.state == "over" and n not in order]
        assert order == sorted(order)
        assert streams[0].timings.pauses == 0
        assert scheduler.report.pauses > 0
        assert "".join(streams[0]) == letters(200)
        assert ["".join(s) for s in streams[1:-1]] == [letters(190, "b")] * 3


def test_nobody_overtakes(endless: puna.Model) -> None:
    """A text that would fit waits for an older one that does not yet, as long as that is there."""
    with endless.scheduler() as scheduler:
        first, large, small = (scheduler.stream(p, 9, temp=0) for p in ("a", "a" * 150, "a"))
        next(first)
        assert [s.state for s in (first, large, small)] == ["running", "waiting", "waiting"]
        large.close()
        next(first)
        assert small.state == "running"


def test_context_shift_together(endless: puna.Model) -> None:
    """Texts longer than the context go on beside each other, as alone."""
    with endless.scheduler() as scheduler:
        streams = [scheduler.stream(p, 280, temp=0, context_shift=True) for p in "ab"]
        assert ["".join(s) for s in streams] == [letters(280, p) for p in "ab"]
        assert all(s.timings.shifts > 0 for s in streams)
        assert scheduler.report.pauses > 0


def test_limits_and_stops(endless: puna.Model) -> None:
    """The context, n_predict and stop strings end each text as they do alone."""
    with endless.scheduler() as scheduler:
        full, stopped, none = (
            scheduler.stream("a" * 20, -1, temp=0),
            scheduler.stream("a", 50, temp=0, stop="xyz"),
            scheduler.stream("a", 0),
        )
        assert ("".join(stopped), stopped.finish_reason) == (letters(22), "stop")
        assert ("".join(none), none.finish_reason) == ("", "length")
        assert (len("".join(full)), full.finish_reason) == (256 - 19, "length")
        with pytest.raises(RequestError, match="the prompt has 257 tokens, the context 256"):
            scheduler.stream("a" * 257)
        with pytest.raises(RequestError, match="no option is called 'sequence'"):
            scheduler.stream("a", sequence=None)
        with pytest.raises(RequestError, match="'sometimes' is no choice"):
            endless.scheduler(swap="sometimes")


def test_room_that_others_hold(endless: puna.Model) -> None:
    """Sequences outside of the scheduler keep their pages: a text ends at what they leave, a prompt says so."""
    with endless.scheduler() as scheduler:
        stream, late = scheduler.stream("a", -1, temp=0), scheduler.stream("a" * 70, 5, temp=0)
        held = endless.cache.open()
        endless.step(held, IDS[:192])
        assert ("".join(stream), stream.finish_reason) == (letters(64), "length")
        with pytest.raises(RequestError, match="70 more tokens do not fit"):
            next(late)
        with pytest.raises(StopIteration):
            next(late)
    endless.cache.close(held)
    nothing_held(endless)


def test_what_fails_ends_one_text(endless: puna.Model) -> None:
    """A sampler that raises ends its own text, where it is read, and no other; it cannot read streams itself."""

    def fails(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
        if len(ids) > 10:
            raise ZeroDivisionError("on purpose")
        return logits

    with endless.scheduler() as scheduler:
        good, bad = scheduler.stream("a", 40, temp=0), scheduler.stream("a", 40, temp=0, samplers=(fails,))
        curious = scheduler.stream("a", 40, samplers=(lambda logits, ids: next(good),))
        assert "".join(next(bad) for _ in range(10)) == letters(10)
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            next(bad)
        with pytest.raises(RequestError, match="a step cannot wait for another"):
            next(curious)
        assert "".join(good) == letters(40)
    nothing_held(endless)


@pytest.mark.parametrize("what", ["step", "logits"])
def test_an_interrupted_step_is_run_again(endless: puna.Model, what: str) -> None:
    """A step that is interrupted, or whose logits are lost, costs no text anything."""
    with endless.scheduler() as scheduler:
        streams = [scheduler.stream(p, 20, temp=0) for p in "ab"]
        next(streams[0])
        where = (endless.backend, "run") if what == "step" else (scheduler, "take")
        lost = mock.patch.object(*where, side_effect=KeyboardInterrupt)
        with lost, pytest.raises(KeyboardInterrupt):
            list(streams[0])
        assert [stream.state for stream in streams] == ["running"] * 2
        assert letters(20) == "b" + "".join(streams[0])
        assert letters(20, "b") == "".join(streams[1])


def test_a_step_that_fails_ends_its_texts(endless: puna.Model) -> None:
    """What a failed step computed is over, whoever reads it gets the error; what waited is written even so."""
    with endless.scheduler() as scheduler:
        streams = [scheduler.stream(p, 20, temp=0) for p in "ab"]
        next(streams[0])
        late = scheduler.stream("c", 20, temp=0)
        fails = mock.patch.object(endless.backend, "run", side_effect=MemoryError)
        with mock.patch.object(scheduler, "fits", return_value=False), fails, pytest.raises(MemoryError):
            list(streams[0])
        assert [stream.state for stream in (*streams, late)] == ["over", "over", "waiting"]
        assert next(streams[1]) == "c"
        with pytest.raises(MemoryError):
            next(streams[1])
        assert "".join(late) == letters(20, "c")
    nothing_held(endless)


def test_closing_early(endless: puna.Model) -> None:
    """Closing a stream, or forgetting it, gives its pages back; closing the scheduler tells those who still read."""
    scheduler = endless.scheduler()
    own = scheduler.stream("a", samplers=(lambda logits, ids: [logits, own.close()][0],))
    other = scheduler.stream("a", temp=0)
    next(other)
    assert [request.writer for request in scheduler.requests] == [other.writer]
    other.close()
    closed, forgotten, left, done = (scheduler.stream(p, 60, temp=0) for p in "abcd")
    next(closed)
    closed.close()
    assert list(closed) == []
    del forgotten
    gc.collect()
    assert [request.writer for request in scheduler.requests] == [left.writer, done.writer]
    assert "".join(done) == letters(60, "d")
    late = scheduler.stream("a", 60, temp=0)
    next(late)
    scheduler.close()
    with pytest.raises(RequestError, match="closed before the text was finished"):
        list(late)
    with pytest.raises(RequestError, match="the scheduler is closed"):
        scheduler.stream("a")
    nothing_held(endless)


def test_threads(alone: Alone) -> None:
    """Threads that read a stream each get their own text, and one that closes does not hold up the others."""
    model = alone.load()
    got: dict[int, str] = {}
    with model.scheduler() as scheduler:
        streams = [scheduler.stream(**alone.asked(n)) for n in range(len(TEXTS))]

        def read(n: int) -> None:
            if n == 2:
                next(streams[n])
                streams[n].close()
            got[n] = "".join(streams[n])

        threads = [threading.Thread(target=read, args=(n,)) for n in range(len(TEXTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    assert got == dict(enumerate(alone.texts)) | {2: ""}
    nothing_held(model)
