"""Logits -> token id: the chain of samplers that a request asks for, and what it remembers between tokens."""

from __future__ import annotations

import copy
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from puna.errors import PunaError, RequestError
from puna.sampling import filters, penalties
from puna.sampling import temperature as temperatures
from puna.sampling.candidates import Candidates, Doubles, Floats, Ints, highest, probabilities
from puna.sampling.params import SamplingParams
from puna.sampling.penalties import Breakers
from puna.scans import Scans

__all__ = ["LogitsFunction", "Sampler"]

# A user's own sampler: (logits float32 [vocab], ids so far int32 [n]) -> logits [vocab].
LogitsFunction = Callable[[Floats, Ints], Any]


class History:
    """The token ids so far, in an array that doubles when it is full."""

    def __init__(self) -> None:
        self._ids: Ints = np.empty(256, np.int32)
        self._count = 0

    def extend(self, tokens: Ints) -> None:
        count = self._count + len(tokens)
        if count > len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty(count, np.int32)])
        self._ids[self._count : count] = tokens
        self._count = count

    def last(self, count: int) -> Ints:
        """The last `count` ids, read-only; -1 is all of them."""
        start = 0 if count < 0 else max(0, self._count - count)
        window = self._ids[start : self._count]
        window.flags.writeable = False
        return window


@dataclass
class State:
    """What the chain remembers. mu: Mirostat's bound on surprise, in bits."""

    history: History
    random: np.random.Generator
    mu: float
    breakers: Breakers


Stage = Callable[[Candidates, State], Candidates]


def _penalties(p: SamplingParams) -> Stage | None:
    amounts = p.repeat_penalty, p.frequency_penalty, p.presence_penalty
    if p.repeat_last_n == 0 or amounts == (1, 0, 0):
        return None
    return lambda c, state: penalties.penalties(c, state.history.last(p.repeat_last_n), *amounts)


def _dry(p: SamplingParams) -> Stage | None:
    if p.dry_multiplier == 0 or p.dry_penalty_last_n == 0:
        return None
    how = p.dry_multiplier, p.dry_base, p.dry_allowed_length
    return lambda c, state: penalties.dry(c, state.history.last(p.dry_penalty_last_n), state.breakers, *how)


def _top_n_sigma(p: SamplingParams) -> Stage | None:
    return (lambda c, _: filters.top_n_sigma(c, p.top_n_sigma)) if p.top_n_sigma > 0 else None


def _top_k(p: SamplingParams) -> Stage | None:
    return (lambda c, _: filters.top_k(c, p.top_k)) if p.top_k > 0 else None


def _typical_p(p: SamplingParams) -> Stage | None:
    return (lambda c, _: filters.typical_p(c, p.typical_p, p.min_keep)) if p.typical_p < 1 else None


def _top_p(p: SamplingParams) -> Stage | None:
    return (lambda c, _: filters.top_p(c, p.top_p, p.min_keep)) if p.top_p < 1 else None


def _min_p(p: SamplingParams) -> Stage | None:
    return (lambda c, _: filters.min_p(c, p.min_p, p.min_keep)) if p.min_p > 0 else None


def _xtc(p: SamplingParams) -> Stage | None:
    if p.xtc_probability == 0 or p.xtc_threshold > 0.5:
        return None
    how = p.xtc_probability, p.xtc_threshold, p.min_keep
    return lambda c, state: filters.xtc(c, *how, state.random)


def _temperature(p: SamplingParams) -> Stage | None:
    if p.dynatemp_range > 0 and not p.mirostat:
        how = p.temp, p.dynatemp_range, p.dynatemp_exponent
        return lambda c, _: temperatures.dynamic_temperature(c, *how)
    return (lambda c, _: temperatures.temperature(c, p.temp)) if p.temp != 1 else None


STAGES: Mapping[str, Callable[[SamplingParams], Stage | None]] = {
    "penalties": _penalties,
    "dry": _dry,
    "top_n_sigma": _top_n_sigma,
    "top_k": _top_k,
    "typ_p": _typical_p,
    "top_p": _top_p,
    "min_p": _min_p,
    "xtc": _xtc,
    "temperature": _temperature,
}
KEEP_LIKELIEST = {"top_n_sigma", "top_k", "top_p", "min_p"}  # nothing to do before a greedy choice


class Sampler:
    """Chooses the next token of one sequence.

    params: what to do.
    vocab_size: length of the logits.
    end_ids: tokens that end a text, which ignore_eos rules out.
    breakers: texts -> Breakers, such as `penalties.find_breakers` bound to a vocabulary; asked for once, if
        DRY is on.
    extra: callables that run before the named samplers, on the logits of the whole vocabulary.
    scans: what passes over a whole vocabulary, such as a backend's kernels.

    `seed` is the seed in use, also where params asked for a random one. Raises RequestError for a bias on a
    token outside the vocabulary, and for DRY's breakers without a way to find them.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        *,
        end_ids: Iterable[int] = (),
        breakers: Callable[[Sequence[str]], Breakers] | None = None,
        extra: Iterable[LogitsFunction] = (),
        scans: Scans | None = None,
    ) -> None:
        self.params, self.vocab_size, self.scans = params, vocab_size, scans or Scans()
        self.seed = secrets.randbits(32) if params.seed in (None, -1) else params.seed
        self._breakers = _find(params, breakers)
        self._chain = [
            *_bias_stage(params, vocab_size, end_ids),
            *(_call(function, vocab_size) for function in extra),
            *_stages(params, vocab_size),
        ]
        self.reset()

    def reset(self) -> None:
        """Forget all tokens and start the random numbers again from the same seed."""
        random = np.random.Generator(np.random.PCG64(self.seed))
        self._state = State(History(), random, 2 * self.params.mirostat_tau, self._breakers)

    def clone(self) -> Sampler:
        """A sampler that goes on from the same state; callables are shared."""
        other = copy.copy(self)
        other._state = _copied(self._state)
        return other

    def accept(self, *ids: int) -> None:
        """Take note of tokens that are now part of the text: prompt tokens and sampled ones alike.

        Raises RequestError for a token outside the vocabulary.
        """
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            what = f"tokens from {min(ids)} to {max(ids)} for a vocabulary of {self.vocab_size}"
            raise RequestError(what, where="accept", fix="give ids of this vocabulary")
        self._state.history.extend(np.array(ids, np.int32))

    def sample(self, logits: Floats) -> int:
        """The next token for logits float32 [vocab]; `accept` it before the next call.

        Raises PunaError for logits that are not numbers, and RequestError where every token is ruled out.
        """
        candidates = self._run(logits, self._state)
        if len(candidates.logits) == 1 and not self.params.mirostat:
            return candidates.token(0)
        chances = probabilities(candidates)
        reached = np.cumsum(chances)
        drawn = min(self._state.random.random() * reached[-1], np.nextafter(reached[-1], 0))
        chosen = int(np.searchsorted(reached, drawn, side="right"))
        surprise = -math.log2(chances[chosen])
        self._state.mu -= self.params.mirostat_eta * (surprise - self.params.mirostat_tau)
        return candidates.token(chosen)

    def probabilities(self, logits: Floats) -> tuple[Ints, Doubles]:
        """What `sample` would draw from: (ids int32 [n], probabilities float64 [n]), likeliest first.

        Uses up no random numbers: a sampler that draws, such as XTC, does here what it will do next.
        """
        candidates = self._run(logits, _copied(self._state))
        chances = probabilities(candidates)
        ids = np.arange(len(chances), dtype=np.int32) if candidates.ids is None else candidates.ids
        order = np.argsort(-chances, kind="stable")
        return ids[order], chances[order]

    def _run(self, logits: Floats, state: State) -> Candidates:
        given = np.ascontiguousarray(logits, np.float32)
        candidates = _checked(Candidates(given, scans=self.scans), self.vocab_size, "logits")
        for stage in self._chain:
            candidates = stage(candidates, state)
        return candidates


def _stages(params: SamplingParams, vocab_size: int) -> list[Stage]:
    """The stages that do something, in order."""
    if params.mirostat:
        bound: dict[int, Stage] = {
            1: lambda c, state: temperatures.mirostat(c, state.mu, vocab_size),
            2: lambda c, state: temperatures.mirostat_v2(c, state.mu),
        }
        heat = _temperature(params)
        return [*([heat] if heat else []), bound[params.mirostat]]
    named: list[tuple[Any, Stage]] = []
    for entry in params.samplers:
        stage = _call(entry, vocab_size) if callable(entry) else STAGES[entry](params)
        if stage:
            named.append((entry, stage))
    if params.greedy:
        named = [(entry, stage) for entry, stage in named if entry != "temperature"]
        while named and named[-1][0] in KEEP_LIKELIEST:
            named.pop()
        return [*(stage for _, stage in named), lambda c, _: temperatures.temperature(c, 0)]
    return [stage for _, stage in named]


def _bias_stage(params: SamplingParams, vocab_size: int, end_ids: Iterable[int]) -> list[Stage]:
    amounts = dict(params.logit_bias)
    if params.ignore_eos:
        amounts.update(dict.fromkeys(end_ids, -math.inf))
    for token in amounts:
        if not 0 <= token < vocab_size:
            what = f"token {token} is outside the vocabulary of {vocab_size}"
            raise RequestError(what, where="logit_bias", fix="leave it out")
    if not amounts:
        return []
    tokens, values = np.array(list(amounts), np.int32), np.array(list(amounts.values()), np.float32)

    def stage(candidates: Candidates, state: State) -> Candidates:
        return _checked(penalties.bias(candidates, tokens, values), vocab_size, "logit_bias")

    return [stage]


def _call(function: LogitsFunction, vocab_size: int) -> Stage:
    """A stage that gives the function the logits of the whole vocabulary, with -inf for what is ruled out."""
    name = getattr(function, "__name__", type(function).__name__)

    def stage(candidates: Candidates, state: State) -> Candidates:
        logits = np.full(vocab_size, -np.inf, np.float32)
        logits[slice(None) if candidates.ids is None else candidates.ids] = candidates.logits
        changed = np.ascontiguousarray(function(logits, state.history.last(-1)), np.float32)
        all_ = _checked(Candidates(changed, scans=candidates.scans), vocab_size, f"sampler {name!r}")
        left = np.flatnonzero(changed > -np.inf)
        return all_.keep(left) if 2 * len(left) < vocab_size else all_

    return stage


def _checked(candidates: Candidates, vocab_size: int, where: str) -> Candidates:
    """A whole vocabulary, if a token of it can be chosen."""
    logits = candidates.logits
    if logits.shape != (vocab_size,):
        what = f"logits of shape {list(logits.shape)} where [{vocab_size}] is wanted"
        raise RequestError(what, where=where, fix="give one number a token of the vocabulary")
    most = highest(candidates)
    if most == -np.inf:
        raise RequestError("every token is ruled out", where=where, fix="allow at least one token")
    if not np.isfinite(most):
        fix = "check the model file, or run it on another backend"
        raise PunaError(f"the highest logit is {most}, so no token can be chosen", where=where, fix=fix)
    return candidates


def _find(params: SamplingParams, breakers: Callable[[Sequence[str]], Breakers] | None) -> Breakers:
    texts = params.dry_sequence_breakers
    if _dry(params) is None or not texts:
        return {}
    if breakers is None:
        what, where = "there is no vocabulary to look the breakers up in", "dry_sequence_breakers"
        raise RequestError(what, where=where, fix="give none, or pass breakers= to the sampler")
    return breakers(texts)


def _copied(state: State) -> State:
    return State(copy.deepcopy(state.history), copy.deepcopy(state.random), state.mu, state.breakers)
