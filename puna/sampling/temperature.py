"""Temperature, fixed or following the entropy, and the truncations of Mirostat. Pure functions."""

from __future__ import annotations

import math

import numpy as np

from puna.sampling.candidates import Candidates, probabilities, top

__all__ = ["dynamic_temperature", "mirostat", "mirostat_v2", "temperature"]

COLDEST = 1e-30  # a lower temperature would overflow float32: it leaves the likeliest token alone
ESTIMATED = 100  # tokens that Mirostat 1 fits its Zipf exponent to, as in the paper


def temperature(candidates: Candidates, temp: float) -> Candidates:
    """Divide the logits by temp; at 0 or less only the likeliest token is left (the first of equals)."""
    if temp < COLDEST:
        return candidates.keep(np.argmax(candidates.logits, keepdims=True), ordered=True)
    return candidates._replace(logits=candidates.logits / np.float32(temp))


def dynamic_temperature(candidates: Candidates, temp: float, spread: float, exponent: float) -> Candidates:
    """A temperature within `spread` of temp, by the entropy over the highest possible (arXiv:2309.02772)."""
    count = np.count_nonzero(candidates.logits > -np.inf)
    if count <= 1:
        return candidates
    chances = probabilities(candidates)
    chances = chances[chances > 0]
    entropy = max(0.0, -float(np.sum(chances * np.log(chances))) / math.log(count))  # 0 certain, 1 uniform
    low, high = max(0.0, temp - spread), temp + spread
    return temperature(candidates, low + (high - low) * entropy**exponent)


def mirostat(candidates: Candidates, mu: float, vocab_size: int) -> Candidates:
    """Keep the k likeliest, k such that surprise is near mu bits by Zipf's law (arXiv:2007.14966, 1)."""
    head = top(candidates, ESTIMATED)
    ranks = np.arange(1, len(head.logits))
    steps = np.log((ranks + 1) / ranks)  # [n - 1]
    falls = (head.logits[:-1] - head.logits[1:]).astype(np.float64)  # log of the ratio of probabilities
    if not len(ranks):
        return head
    slope = max(float(np.sum(steps * falls) / np.sum(steps * steps)), 1e-6)
    excess = slope - 1
    if abs(excess) < 1e-9:
        spread = 1 / math.log(vocab_size)  # the limit of the quotient below
    else:
        spread = excess / -math.expm1(-excess * math.log(vocab_size))
    power = (math.log(spread) + mu * math.log(2)) / slope
    if power >= math.log(vocab_size):
        return top(candidates, vocab_size)
    return top(candidates, max(int(math.exp(power)), 1))


def mirostat_v2(candidates: Candidates, mu: float) -> Candidates:
    """Keep tokens whose surprise is at most mu bits, and always the likeliest (arXiv:2007.14966, 2)."""
    chances = np.maximum(probabilities(candidates), np.finfo(np.float64).tiny)
    kept = np.flatnonzero(-np.log2(chances) <= mu)
    return candidates.keep(kept, ordered=candidates.ordered) if len(kept) else top(candidates, 1)
