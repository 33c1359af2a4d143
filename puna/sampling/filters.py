"""Samplers that take candidates away. Each is a pure function of the candidates and its parameters.

`min_keep` is the least number of candidates that a filter leaves, where there are as many.
"""

from __future__ import annotations

import numpy as np

from puna.sampling.candidates import Candidates, highest, probabilities, top

__all__ = ["min_p", "top_k", "top_n_sigma", "top_p", "typical_p", "xtc"]


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keep the k likeliest (arXiv:1904.09751); k of 0 or less keeps all."""
    return top(candidates, k) if k > 0 else candidates


def top_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keep the fewest likeliest whose probabilities reach p together (nucleus, arXiv:1904.09751)."""
    if p >= 1:
        return candidates
    logits = candidates.logits
    most = highest(candidates)
    total = candidates.scans.weights(logits, most).sum(dtype=np.float64)
    for count in (256, 4096, len(logits)):  # most nuclei are small: the whole is rarely sorted
        head = top(candidates, max(count, min_keep))
        reached = np.cumsum(np.exp(head.logits - most), dtype=np.float64) / total  # [count]
        if reached[-1] >= p or count >= len(logits):
            break
    wanted = int(np.searchsorted(reached, p)) + 1
    return head.first(max(wanted, min_keep))


def min_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keep those at least p times as likely as the likeliest (ggml-org/llama.cpp#3841)."""
    if p <= 0:
        return candidates
    logits = candidates.logits
    kept = np.flatnonzero(logits >= np.float32(highest(candidates) + np.log(p)))
    if len(kept) < min_keep:
        return top(candidates, min_keep)
    return candidates.keep(kept, ordered=candidates.ordered)


def typical_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keep those of surprise nearest to the entropy, until they exceed p together (arXiv:2202.00666)."""
    if p >= 1:
        return candidates
    ordered = top(candidates, len(candidates.logits))
    chances = probabilities(ordered)  # [n]
    surprise = -np.log(np.maximum(chances, np.finfo(np.float64).tiny))
    entropy = np.sum(chances * surprise)
    nearest = np.argsort(np.abs(surprise - entropy), kind="stable")
    wanted = int(np.searchsorted(np.cumsum(chances[nearest]), p, side="right")) + 1
    return ordered.keep(nearest[: max(wanted, min_keep)])


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Keep logits within n standard deviations of the highest (arXiv:2411.07641); 0 or less keeps all."""
    logits = candidates.logits
    if n <= 0 or len(logits) <= 1:
        return candidates
    finite = logits[logits > -np.inf].astype(np.float64)
    kept = np.flatnonzero(logits >= np.max(finite) - n * np.std(finite))
    return candidates.keep(kept, ordered=candidates.ordered)


def xtc(
    candidates: Candidates, probability: float, threshold: float, min_keep: int, draw: np.random.Generator
) -> Candidates:
    """With this probability remove all tokens above the threshold but the least likely of them.

    Source: oobabooga/text-generation-webui#6335. A threshold above 0.5 can never hold two tokens.
    """
    if probability <= 0 or threshold > 0.5 or len(candidates.logits) < 2 or draw.random() > probability:
        return candidates
    ordered = top(candidates, len(candidates.logits))
    assert ordered.ids is not None
    removed = int(np.count_nonzero(probabilities(ordered) >= threshold)) - 1
    if removed < 1 or len(ordered.logits) - removed < min_keep:
        return candidates
    return ordered._replace(logits=ordered.logits[removed:], ids=ordered.ids[removed:])
