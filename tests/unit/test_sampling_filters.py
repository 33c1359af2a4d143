"""Filters and temperature against their definitions, written out here without NumPy tricks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.sampling import filters, temperature
from puna.sampling.candidates import Candidates, probabilities, strongest, top


def logits_of(size: int, seed: int, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def softmax(logits: list[float]) -> list[float]:
    highest = max(logits)
    weights = [math.exp(logit - highest) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def ranked(logits: list[float]) -> list[int]:
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


def ids(candidates: Candidates) -> list[int]:
    return list(range(len(candidates.logits))) if candidates.ids is None else candidates.ids.tolist()


SIZES = [1, 2, 7, 300, 3000, 20000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 5, 40, 700])
def test_top_k_is_the_head_of_a_stable_sort(size: int, k: int) -> None:
    """top_k gives the k highest logits in descending order, equal ones in order of id."""
    logits = np.round(logits_of(size, k))  # rounding makes ties
    assert ids(filters.top_k(Candidates(logits), k)) == ranked(logits.tolist())[:k]


def test_top_k_of_zero_keeps_everything() -> None:
    """k of 0 or less returns the very candidates."""
    candidates = Candidates(logits_of(9, 1))
    assert filters.top_k(candidates, 0) is candidates
    assert filters.top_k(candidates, -1) is candidates


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([-math.inf, -2.0, -0.0, 0.0, 1.5, 3.0]), min_size=1, max_size=60),
    st.integers(1, 70),
)
def test_strongest_leaves_out_what_is_ruled_out(values: list[float], count: int) -> None:
    """strongest ranks the finite logits, zeros of either sign as equals, and drops -inf."""
    expected = [i for i in ranked(values) if values[i] > -math.inf][:count]
    assert strongest(Candidates(np.array(values, np.float32)), count).tolist() == expected


def test_strongest_when_all_logits_are_alike() -> None:
    """A large array of one value yields its first positions, though no threshold thins it out."""
    assert strongest(Candidates(np.full(9000, 2.5, np.float32)), 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("p", [0.0, 0.3, 0.95, 0.9999, 1.0])
@pytest.mark.parametrize("min_keep", [0, 3])
def test_top_p_is_the_smallest_nucleus(size: int, p: float, min_keep: int) -> None:
    """top_p keeps ranked tokens until their sum reaches p, and at least min_keep."""
    logits = logits_of(size, 2).tolist()
    chances, total, kept = softmax(logits), 0.0, []
    for token in ranked(logits):
        kept.append(token)
        total += chances[token]
        if total >= p and len(kept) >= min_keep:
            break
    found = ids(filters.top_p(Candidates(np.array(logits, np.float32)), p, min_keep))
    assert sorted(found) == (list(range(size)) if p == 1 else sorted(kept))


@pytest.mark.parametrize("p", [0.0, 0.01, 0.2, 1.0])
@pytest.mark.parametrize("min_keep", [0, 4])
def test_min_p_compares_with_the_likeliest(p: float, min_keep: int) -> None:
    """min_p keeps tokens of probability at least p times the highest, and at least min_keep."""
    logits = logits_of(500, 3).tolist()
    chances = softmax(logits)
    kept = {i for i, chance in enumerate(chances) if chance >= p * max(chances)}
    kept |= set(ranked(logits)[:min_keep])
    assert set(ids(filters.min_p(Candidates(np.array(logits, np.float32)), p, min_keep))) == kept


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("min_keep", [0, 6])
def test_typical_p_keeps_the_nearest_to_the_entropy(p: float, min_keep: int) -> None:
    """typical_p takes tokens by the distance of their surprise from the entropy until their sum exceeds p."""
    logits = logits_of(200, 4).tolist()
    chances = softmax(logits)
    entropy = -math.fsum(chance * math.log(chance) for chance in chances)
    total, kept = 0.0, []
    for token in sorted(range(200), key=lambda i: abs(-math.log(chances[i]) - entropy)):
        kept.append(token)
        total += chances[token]
        if total > p and len(kept) >= min_keep:
            break
    found = ids(filters.typical_p(Candidates(np.array(logits, np.float32)), p, min_keep))
    assert set(found) == (set(range(200)) if p == 1 else set(kept))


def test_typical_p_must_be_exceeded() -> None:
    """A sum that equals p is not enough for typical_p, unlike for top_p."""
    four = Candidates(np.zeros(4, np.float32))
    assert len(filters.typical_p(four, 0.5).logits) == 3
    assert len(filters.top_p(four, 0.5).logits) == 2


def test_top_n_sigma_ignores_what_is_ruled_out() -> None:
    """top_n_sigma measures the deviation of the finite logits alone."""
    logits = logits_of(400, 5)
    logits[::3] = -np.inf
    finite = [x for x in logits.tolist() if x > -math.inf]
    mean = math.fsum(finite) / len(finite)
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in finite) / len(finite))
    expected = [i for i, x in enumerate(logits.tolist()) if x >= max(finite) - 1.5 * deviation]
    assert ids(filters.top_n_sigma(Candidates(logits), 1.5)) == expected
    assert len(filters.top_n_sigma(Candidates(logits), 0).logits) == 400


def test_xtc_spares_the_least_likely_of_the_likely() -> None:
    """XTC removes the tokens above its threshold but the last of them, unless too few would be left."""
    logits = np.log(np.array([0.05, 0.4, 0.25, 0.2, 0.1], np.float32))
    draw = np.random.default_rng(0)
    assert ids(filters.xtc(Candidates(logits), 1.0, 0.2 - 1e-3, 0, draw)) == [3, 4, 0]
    assert len(filters.xtc(Candidates(logits), 1.0, 0.2 - 1e-3, 4, draw).logits) == 5
    assert len(filters.xtc(Candidates(logits), 1.0, 0.3, 0, draw).logits) == 5
    assert len(filters.xtc(Candidates(logits), 1.0, 0.51, 0, draw).logits) == 5


def test_xtc_happens_as_often_as_asked() -> None:
    """XTC with probability 0.25 removes tokens in about a quarter of 4000 seeded draws."""
    logits, draw = np.zeros(3, np.float32), np.random.default_rng(1)
    hits = sum(len(filters.xtc(Candidates(logits), 0.25, 0.1, 0, draw).logits) == 1 for _ in range(4000))
    assert abs(hits / 4000 - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 4000)


def test_temperature_divides_and_freezes() -> None:
    """A temperature divides the logits; 0, a negative and a denormal one leave the first of the highest."""
    logits = np.array([1, 4, -2, 4], np.float32)
    assert temperature.temperature(Candidates(logits), 0.5).logits.tolist() == [2, 8, -4, 8]
    for cold in (0.0, -1.0, 1e-40):
        assert ids(temperature.temperature(Candidates(logits), cold)) == [1]


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("spread", "low"), [(0.5, 0.3), (1.0, 0.0)])
def test_dynamic_temperature_follows_the_entropy(exponent: float, spread: float, low: float) -> None:
    """The dynamic temperature is low + (high - low) * (entropy / log n)^exponent, low being at least 0."""
    logits = logits_of(50, 6).tolist()
    chances = softmax(logits)
    share = -math.fsum(chance * math.log(chance) for chance in chances) / math.log(50)
    expected = low + (0.8 + spread - low) * share**exponent
    found = temperature.dynamic_temperature(Candidates(np.array(logits, np.float32)), 0.8, spread, exponent)
    assert np.allclose(found.logits, np.array(logits) / expected, rtol=1e-5)


def test_dynamic_temperature_of_a_single_candidate() -> None:
    """One possible token stays as it is, whatever else is ruled out."""
    candidates = Candidates(np.array([3, -np.inf], np.float32))
    assert temperature.dynamic_temperature(candidates, 0.8, 0.5, 1.0) is candidates


def test_mirostat_2_bounds_the_surprise() -> None:
    """Mirostat 2 keeps tokens of surprise at most mu bits, and the likeliest when none is."""
    logits = logits_of(300, 7).tolist()
    surprise = [-math.log2(chance) for chance in softmax(logits)]
    candidates = Candidates(np.array(logits, np.float32))
    assert ids(temperature.mirostat_v2(candidates, 5.0)) == [i for i, s in enumerate(surprise) if s <= 5.0]
    assert ids(temperature.mirostat_v2(candidates, -3000.0)) == ranked(logits)[:1]


@pytest.mark.parametrize("mu", [2.0, 6.0, 10.0])
def test_mirostat_1_fits_a_zipf_exponent(mu: float) -> None:
    """Mirostat 1 keeps k tokens, k by the paper's estimate from the 100 likeliest."""
    logits = logits_of(2000, 8).tolist()
    chances = sorted(softmax(logits), reverse=True)[:100]
    steps = [math.log((i + 2) / (i + 1)) for i in range(99)]
    falls = [math.log(chances[i] / chances[i + 1]) for i in range(99)]
    s = sum(t * b for t, b in zip(steps, falls, strict=True)) / sum(t * t for t in steps)
    k = ((s - 1) * 2**mu / (1 - 2000 ** -(s - 1))) ** (1 / s)
    assert len(temperature.mirostat(Candidates(np.array(logits, np.float32)), mu, 2000).logits) == max(
        int(k), 1
    )


@pytest.mark.parametrize("logits", [[5.0], [0.0] * 40, [float(-10 * i) for i in range(40)]])
def test_mirostat_1_on_degenerate_logits(logits: list[float]) -> None:
    """One token, equal tokens and a steep fall neither fail nor leave nothing."""
    kept = temperature.mirostat(Candidates(np.array(logits, np.float32)), 4.0, len(logits))
    assert 1 <= len(kept.logits) <= len(logits)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([4, 50, 3000]))
def test_filters_never_empty_and_only_remove(seed: int, size: int) -> None:
    """Every filter leaves at least one token and changes no logit."""
    draw = np.random.default_rng(seed)
    logits = logits_of(size, seed)
    logits[draw.random(size) < 0.3] = -np.inf
    logits[0] = 1.0
    p = float(draw.random())
    whole = Candidates(logits)
    for start in (whole, top(whole, 40)):
        for left in (
            filters.top_p(start, p),
            filters.min_p(start, p),
            filters.typical_p(start, p),
            filters.top_n_sigma(start, 3 * p),
            filters.xtc(start, 1.0, p / 2, 0, draw),
        ):
            kept = ids(left)
            assert kept
            assert len(set(kept)) == len(kept)
            assert logits[kept].tolist() == left.logits.tolist()
            assert math.isclose(probabilities(left).sum(), 1)
