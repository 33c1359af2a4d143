"""Samplers that lower or raise logits: biases, repetition penalties and DRY. Each is a pure function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from puna.sampling.candidates import Candidates, Floats, Ints, Positions

__all__ = ["Breakers", "bias", "dry", "find_breakers", "penalties"]

# First token of each way to spell a sequence breaker -> the tokens that must follow it, one tuple a way.
Breakers = Mapping[int, Iterable[tuple[int, ...]]]

LONGEST_TAIL = 20  # tokens of a breaker that are compared, llama.cpp's limit
FLOAT32_MAX = float(np.finfo(np.float32).max)


def bias(candidates: Candidates, tokens: Ints, amounts: Floats) -> Candidates:
    """Add an amount to the logit of each of these tokens; -inf rules a token out."""

    def change(logits: Floats, found: Positions) -> Floats:
        return logits + amounts[found]

    return _moved(candidates, tokens, change)


def penalties(
    candidates: Candidates, window: Ints, repeat: float, frequency: float, presence: float
) -> Candidates:
    """Penalise the tokens of a window of the text by how often they occur there.

    repeat: divides positive logits and multiplies others (arXiv:1909.05858, as llama.cpp amends it).
    frequency, presence: taken from the logit for each time, and once.
    """
    tokens, counts = np.unique(window, return_counts=True)

    def change(logits: Floats, found: Positions) -> Floats:
        scaled = np.where(logits <= 0, logits * np.float32(repeat), logits / np.float32(repeat))
        lowered: Floats = (scaled - (counts[found] * frequency + presence)).astype(np.float32)
        return lowered

    return _moved(candidates, tokens, change)


def dry(
    candidates: Candidates,
    window: Ints,
    breakers: Breakers,
    multiplier: float,
    base: float,
    allowed_length: int,
) -> Candidates:
    """Penalise tokens that would go on with a repetition of the end of the window.

    A token that would follow a repetition of n >= allowed_length tokens loses
    multiplier * base^(n - allowed_length). Repetitions are not followed across a sequence breaker.
    Source: oobabooga/text-generation-webui#5677.
    """
    limit = since_breaker(window, breakers)
    if min(limit, len(window) - 1) < allowed_length:
        return candidates
    # A float32 holds no larger penalty, so longer repetitions need not be told apart.
    useful = int(math.log(FLOAT32_MAX) / math.log(base)) if base > 1.000001 else 0
    lengths = repetitions(window, min(limit, allowed_length + useful))  # [len(window) - 1]
    penalised = lengths >= allowed_length
    longest: dict[int, int] = {}
    for token, length in zip(window[1:][penalised].tolist(), lengths[penalised].tolist(), strict=True):
        if () not in breakers.get(token, ()):
            longest[token] = max(length, longest.get(token, 0))
    if not longest:
        return candidates
    tokens = np.fromiter(longest, np.int32)
    amounts = [min(multiplier * base ** (n - allowed_length), FLOAT32_MAX) for n in longest.values()]
    return bias(candidates, tokens, -np.array(amounts, np.float32))


def repetitions(window: Ints, limit: int) -> Ints:
    """For each token but the last: how many tokens up to it equal the window's last ones, at most limit."""
    lengths = np.zeros(len(window) - 1, np.int32)
    ends: Positions = np.arange(len(window) - 1)
    for length in range(limit):
        ends = ends[ends >= length]
        ends = ends[window[ends - length] == window[-1 - length]]
        if not len(ends):
            break
        lengths[ends] = length + 1
    return lengths


def since_breaker(window: Ints, breakers: Breakers) -> int:
    """How many tokens follow the last sequence breaker in the window; its length where there is none."""
    heads = np.fromiter(breakers, np.int32)
    starts: list[int] = np.flatnonzero(np.isin(window, heads)).tolist()
    for start in reversed(starts):
        after = tuple(window[start + 1 : start + 1 + LONGEST_TAIL].tolist())
        matching = [len(tail) for tail in breakers[int(window[start])] if after[: len(tail)] == tail]
        if matching:
            return len(window) - 1 - start - max(matching)
    return len(window)


def find_breakers(
    texts: Sequence[str], pieces: Sequence[bytes], encode: Callable[[str], Sequence[int]]
) -> Breakers:
    """How a vocabulary can spell each text (LostRuins/koboldcpp#982).

    texts: the sequence breakers.
    pieces: the bytes of every token, by id.
    encode: text -> token ids, with no special tokens.

    A token that holds a text breaks by itself. One that ends with the beginning of a text breaks where the
    tokens of the rest follow. Tokens that hold a part of a character are not looked at.
    """
    found: dict[int, set[tuple[int, ...]]] = {}
    for text in texts:
        whole = text.encode()
        rests = {text[:cut].encode(): text[cut:] for cut in range(1, len(text))}
        tails = {start: tuple(encode(rest)[:LONGEST_TAIL]) for start, rest in rests.items()}
        for token, piece in enumerate(pieces):
            fitting = {()} if whole in piece else {tails[start] for start in tails if piece.endswith(start)}
            if fitting:
                found.setdefault(token, set()).update(fitting)
    return found


def _moved(candidates: Candidates, tokens: Ints, change: Callable[[Floats, Positions], Floats]) -> Candidates:
    """The candidates with the logits of `tokens` changed: change(their logits, indices into tokens)."""
    found, positions = candidates.find(tokens)
    if not len(found):
        return candidates
    logits = candidates.logits.copy()
    logits[positions] = change(logits[positions], found)
    return candidates._replace(logits=logits, ordered=False)
