"""One text being generated: an iterator of pieces, and what it cost."""

from __future__ import annotations

import dataclasses
import difflib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.cache import KVCache
from puna.cache import Sequence as CacheSequence
from puna.errors import RequestError
from puna.sampling import Sampler, SamplingParams, StopMatcher
from puna.shift import Shift
from puna.tokenizer import Tokenizer

__all__ = ["Generation", "Timings", "Writer", "sampling_params"]


@dataclass
class Timings:
    """Counts and seconds. `cached` tokens of the prompt were in the cache already and cost nothing.

    uncached: why no more of them were.  shifts: how often the context was full; `dropped` tokens had to go.
    """

    prompt_tokens: int = 0
    cached: int = 0
    prompt_seconds: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    uncached: str = ""
    shifts: int = 0
    dropped: int = 0

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens computed a second."""
        return (self.prompt_tokens - self.cached) / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def rate(self) -> float:
        """Tokens generated a second. The first came with the prompt, so it is not counted."""
        return (self.tokens - 1) / self.seconds if self.tokens > 1 and self.seconds else 0.0


def sampling_params(options: Mapping[str, Any]) -> SamplingParams:
    """The sampling parameters that a call gives. Raises RequestError for one that does not exist."""
    known = [field.name for field in dataclasses.fields(SamplingParams)]
    unknown = [name for name in options if name not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], known) or known
        raise RequestError(f"no option is called {unknown[0]!r}", fix=f"the nearest are {', '.join(near)}")
    return SamplingParams(**options)


class Writer:
    """The loop that generates, and what it has so far. `run` is called once.

    prompted: called when the prompt is in the cache, before the first token comes.
    """

    def __init__(
        self,
        step: Callable[[CacheSequence, Sequence[int]], NDArray[np.float32]],
        cache: KVCache,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        sampler: Sampler,
        n_predict: int,
        stop: str | Sequence[str],
        sequence: CacheSequence | None,
        shift: Shift | None = None,
    ) -> None:
        self.step, self.cache, self.tokenizer = step, cache, tokenizer
        if not isinstance(n_predict, int) or n_predict < -2:
            raise RequestError(
                f"{n_predict!r} is no number of tokens", where="n_predict (-n)", fix="use -2 or more"
            )
        self.prompt, self.sampler, self.n_predict = list(prompt), sampler, n_predict
        self.shift = None if n_predict == -2 else shift
        self.stops = StopMatcher([stop] if isinstance(stop, str) else stop)
        self.given = sequence
        self.ids: list[int] = []
        self.finish_reason: str | None = None
        self.prompted: Callable[[], object] = lambda: None
        self.timings = Timings()
        if shift and (times := shift.times(self.prompt, room := cache.room(sequence))):
            self.prompt = self.dropped(shift, self.prompt, times * shift.half(room), times)
        self.timings.prompt_tokens = len(self.prompt)

    def run(self) -> Generator[str, None, None]:
        """The loop: prompt, then sample, show, and compute the next."""
        sequence = self.cache.open() if self.given is None else self.given
        decoder = self.tokenizer.decoder(skip_special=True, continues=True)
        started = time.perf_counter()
        try:
            logits = self.feed_prompt(sequence)
            self.timings.prompt_seconds = time.perf_counter() - started
            self.prompted()
            started = time.perf_counter()
            while not self.is_over(sequence):
                if self.ids:
                    logits = self.go_on(sequence)
                token = self.sampler.sample(logits)
                self.sampler.accept(token)
                self.ids.append(token)
                self.timings.tokens += 1
                self.timings.seconds = time.perf_counter() - started
                if token in self.tokenizer.end_ids:
                    self.finish_reason = "stop"
                else:
                    yield from self.show(decoder.push(token))
            yield from self.show(decoder.finish())
            if rest := self.stops.finish():
                yield rest
        finally:
            if self.given is None:
                self.cache.close(sequence)

    def feed_prompt(self, sequence: CacheSequence) -> NDArray[np.float32]:
        """The prompt, and what of it the cache had."""
        self.timings.cached, self.timings.uncached = self.cut(sequence, self.prompt)
        self.sampler.accept(*self.prompt)
        return self.step(sequence, self.prompt[self.timings.cached :])

    def cut(self, sequence: CacheSequence, text: Sequence[int]) -> tuple[int, str]:
        """Leave a sequence what the cache holds of a text, but for its last token; how much, and why not more."""
        held = self.cache.truncate(sequence, min(sequence.common_prefix(text), len(text) - 1))
        if held:
            return held, ""
        reuse = self.cache.reuse(sequence, text)
        return reuse.count, reuse.reason

    def go_on(self, sequence: CacheSequence) -> NDArray[np.float32]:
        """Compute the last token, and where the context is full, first all that moves to another place."""
        if self.shift is None or not self.is_full(sequence):
            return self.step(sequence, self.ids[-1:])
        text = [*sequence.tokens, self.ids[-1]]
        text = self.dropped(self.shift, text, self.shift.half(len(sequence)))
        held, _ = self.cut(sequence, text)
        return self.step(sequence, text[held:])

    def dropped(self, shift: Shift, text: Sequence[int], count: int, times: int = 1) -> list[int]:
        """A text that the context was too short for, without `count` of its tokens."""
        self.timings.shifts += times
        self.timings.dropped += count
        return shift.drop(text, count)

    def is_full(self, sequence: CacheSequence) -> bool:
        return len(sequence) >= self.cache.room(sequence)

    def is_over(self, sequence: CacheSequence) -> bool:
        """Whether it has stopped, or n_predict tokens are out, or the context has no room for the last one."""
        spent = 0 <= self.n_predict <= len(self.ids)
        if self.finish_reason is None and (spent or (self.ids and self.is_stuck(sequence))):
            self.finish_reason = "length"
        return self.finish_reason is not None

    def is_stuck(self, sequence: CacheSequence) -> bool:
        """Whether there is no room, and none can be made."""
        can_shift = self.shift is not None and self.shift.half(len(sequence)) > 0
        return self.is_full(sequence) and not (can_shift and self.cache.states.can_step(sequence.states))

    def show(self, piece: str) -> Iterator[str]:
        text, stopped = self.stops.push(piece)
        if stopped:
            self.finish_reason = "stop"
        if text:
            yield text


class Generation(Iterator[str]):
    """Yields text as it comes; never half a character, never the beginning of a stop string.

    Whoever drops it early gives its room in the cache back.
    """

    def __init__(self, writer: Writer) -> None:
        # The loop knows the writer and not this object: no cycle keeps it alive.
        self.writer, self.pieces = writer, writer.run()

    def __next__(self) -> str:
        return next(self.pieces)

    def close(self) -> None:
        """Stop early and give the cache back."""
        self.pieces.close()

    @property
    def ids(self) -> list[int]:
        """The tokens generated so far."""
        return self.writer.ids

    @property
    def finish_reason(self) -> str | None:
        """None while it runs; "stop" after an end-of-generation token or a stop string, "length" at a limit."""
        return self.writer.finish_reason

    @property
    def timings(self) -> Timings:
        """What it cost."""
        return self.writer.timings
