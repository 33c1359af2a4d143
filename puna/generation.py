"""One text being generated: what it wants computed, its pieces, and what it cost."""

from __future__ import annotations

import dataclasses
import difflib
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
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

__all__ = ["Generation", "Step", "Timings", "Writer", "sampling_params"]

# Appends ids to a sequence: the logits after the last, float32 [vocabulary].
Step = Callable[[CacheSequence, Sequence[int]], NDArray[np.float32]]


@dataclass
class Timings:
    """Counts and seconds. `cached` tokens of the prompt were in the cache already and cost nothing.

    uncached: why no more of them were.  shifts: how often the context was full; `dropped` tokens had to go.
    pauses: how often it made way for other texts; `swapped` bytes were written to a file and read back after that.
    recomputed: tokens that were computed again after it, or since its sequence was given another text meanwhile.
    """

    prompt_tokens: int = 0
    cached: int = 0
    prompt_seconds: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    uncached: str = ""
    shifts: int = 0
    dropped: int = 0
    pauses: int = 0
    recomputed: int = 0
    swapped: int = 0

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
    """One text: which tokens it wants computed next, and what comes of their logits.

    Whoever drives it calls `begin` with a sequence, then `wanted` and `take` in turn until no token is wanted, then
    `rest`. The sequence can be another at any time, as long as it holds a beginning of `text`.

    text: the prompt and what was generated, but for what the context had no room for.  ids: what was generated.
    room: tokens that the sequence can hold, for a prompt that is too long for it.
    border: how many tokens of the prompt an encoder reads; what follows them begins an answer.
    prompted: called when the prompt is in the cache, before the first token comes.
    """

    def __init__(
        self,
        cache: KVCache,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        sampler: Sampler,
        n_predict: int,
        stop: str | Sequence[str],
        shift: Shift | None,
        room: int,
        border: int = 0,
    ) -> None:
        self.cache, self.ends = cache, tokenizer.end_ids
        if not isinstance(n_predict, int) or n_predict < -2:
            raise RequestError(
                f"{n_predict!r} is no number of tokens", where="n_predict (-n)", fix="use -2 or more"
            )
        self.sampler, self.n_predict = sampler, n_predict
        self.shift = None if n_predict == -2 else shift
        self.stops = StopMatcher([stop] if isinstance(stop, str) else stop)
        self.decoder = tokenizer.decoder(skip_special=True, continues=True)
        self.text, self.ids, self.border = list(prompt), list[int](), border
        # A sequence, its cuts, and how much of it is known.
        self.seen: tuple[CacheSequence, int, int] | None = None
        self.finish_reason: str | None = None
        self.prompted: Callable[[], object] = lambda: None
        self.timings, self.started = Timings(), 0.0
        if shift and (times := shift.times(self.text, room)):
            self.drop(shift, times * shift.half(room), times)
        self.prompt = list(self.text)
        self.timings.prompt_tokens = len(self.prompt)

    def begin(self, sequence: CacheSequence) -> None:
        """Leave a sequence what the cache has of the prompt."""
        self.started = time.perf_counter()
        self.timings.cached, self.timings.uncached = self.cut(sequence)
        self.sampler.accept(*self.prompt[self.border :])

    def cut(self, sequence: CacheSequence) -> tuple[int, str]:
        """Leave a sequence what the cache has of the text, but for its last token; how much, and why not more."""
        most = min(sequence.common_prefix(self.text), len(self.text) - 1)
        if most < self.border or sequence.border != self.border:
            most = 0
        if held := self.cache.truncate(sequence, most):
            return held, ""
        reuse = self.cache.reuse(sequence, self.text)
        return reuse.count, reuse.reason

    def wanted(self, sequence: CacheSequence, others: Collection[CacheSequence] = ()) -> list[int]:
        """The tokens to compute next; none when the text is at its end, or the context full and nothing dropped.

        others: sequences that make way where this one needs their room.
        """
        if self.finish_reason is None and not self.holds(sequence):
            held = self.cut(sequence)[0]
            self.timings.recomputed += max(0, len(self.text) - 1 - held)
        while self.ids and self.finish_reason is None and self.is_full(sequence, others):
            # The last token is the one that there is no room for.
            half = self.shift.half(len(self.text) - 1) if self.shift else 0
            if self.shift and half and self.cache.can_step(sequence, others):
                self.drop(self.shift, half)
                self.cut(sequence)
            else:
                self.finish_reason = "length"
        if self.finish_reason is not None:
            return []
        if len(sequence) == len(self.text):  # the logits after it were lost
            self.cut(sequence)
        sequence.border = self.border
        return self.text[len(sequence) :]

    def holds(self, sequence: CacheSequence) -> bool:
        """Whether a sequence holds a beginning of the text, and nothing else: others may have written to it."""
        known, cuts, length = self.seen or (None, 0, 0)
        if known is not sequence or cuts != sequence.cuts:
            length = 0
        if sequence.tokens[length:] != self.text[length : len(sequence)]:
            return False
        self.seen = sequence, sequence.cuts, len(sequence)
        return True

    def is_full(self, sequence: CacheSequence, others: Collection[CacheSequence]) -> bool:
        count, room = len(self.text), self.cache.room
        return count > room(sequence) and (not others or count > room(sequence, others))

    def drop(self, shift: Shift, count: int, times: int = 1) -> None:
        """Take `count` tokens out of the text, which the context is too short for."""
        self.timings.shifts += times
        self.timings.dropped += count
        self.text, self.seen = shift.drop(self.text, count), None

    def take(self, logits: NDArray[np.float32]) -> str:
        """Choose the next token: the text that can be shown now."""
        now = time.perf_counter()
        if not self.ids:
            self.timings.prompt_seconds = now - self.started
            self.prompted()
            self.started = time.perf_counter()
            if self.n_predict == 0:
                self.finish_reason = "length"
                return ""
        token = self.sampler.sample(logits[: self.sampler.vocab_size])  # those of rows that have a token
        self.sampler.accept(token)
        self.ids.append(token)
        self.text.append(token)
        self.timings.tokens += 1
        self.timings.seconds = time.perf_counter() - self.started
        if token in self.ends:
            self.finish_reason = "stop"
            return ""
        shown = self.show(self.decoder.push(token))
        if self.finish_reason is None and 0 <= self.n_predict <= len(self.ids):
            self.finish_reason = "length"
        return shown

    def show(self, piece: str) -> str:
        text, stopped = self.stops.push(piece)
        if stopped:
            self.finish_reason = "stop"
        return text

    def rest(self) -> str:
        """What was held back, when no token is wanted any more."""
        return self.show(self.decoder.finish()) + self.stops.finish()


def alone(writer: Writer, step: Step, given: CacheSequence | None) -> Generator[str, None, None]:
    """Drive one writer: with a sequence of its own, or with one that is given and stays open."""
    sequence = writer.cache.open() if given is None else given
    try:
        writer.begin(sequence)
        while ids := writer.wanted(sequence):
            logits = step(sequence, ids)
            if not writer.holds(sequence) or len(sequence) < len(writer.text):
                what = "another text was written to the sequence during a step"
                raise RequestError(what, fix="give each text a sequence of its own")
            if piece := writer.take(logits):
                yield piece
        if rest := writer.rest():
            yield rest
    finally:
        if given is None:
            writer.cache.close(sequence)


class Generation(Iterator[str]):
    """Yields text as it comes; never half a character, never the beginning of a stop string.

    Whoever drops it early gives its room in the cache back.
    """

    def __init__(self, writer: Writer, step: Step, sequence: CacheSequence | None = None) -> None:
        # The loop knows the writer and not this object: no cycle keeps it alive.
        self.writer, self.pieces = writer, alone(writer, step, sequence)

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
