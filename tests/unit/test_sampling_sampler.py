"""The whole chain: choices, memory, seeds, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from puna.errors import PunaError, RequestError
from puna.sampling import Sampler, SamplingParams

VOCAB = 50
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def logits_of(seed: int, size: int = VOCAB) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * 2).astype(np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(np.float64(logits) - np.float64(logits).max())
    return weights / weights.sum()


def spread(sampler: Sampler, logits: np.ndarray) -> np.ndarray:
    """The distribution over the whole vocabulary."""
    whole = np.zeros(sampler.vocab_size)
    ids, chances = sampler.probabilities(logits)
    whole[ids] = chances
    return whole


def chi_square(counts: np.ndarray, chances: np.ndarray) -> float:
    """Pearson's statistic in standard deviations above its mean, by Wilson and Hilferty's approximation."""
    seen = chances > 0
    assert counts[~seen].sum() == 0
    expected = chances[seen] * counts.sum()
    free = seen.sum() - 1
    statistic = ((counts[seen] - expected) ** 2 / expected).sum()
    return float(((statistic / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free)))


@pytest.mark.parametrize(
    "given",
    [
        {**OFF, "temp": 1.0},
        {},
        {"top_k": 5, "temp": 2.0},
        {"typical_p": 0.6, "dynatemp_range": 0.3},
        {"mirostat": 2, "mirostat_eta": 0.0},
    ],
)
def test_draws_follow_the_distribution(given: dict[str, Any]) -> None:
    """20000 seeded draws pass a chi-square test against the probabilities the sampler reports."""
    sampler, logits = Sampler(SamplingParams(seed=3, **given), VOCAB), logits_of(1)
    counts = np.bincount([sampler.sample(logits) for _ in range(20000)], minlength=VOCAB)
    assert abs(chi_square(counts, spread(sampler, logits))) < 4


def test_the_plain_distribution_is_the_softmax() -> None:
    """With every sampler off the distribution is the softmax of the logits over the temperature."""
    logits = logits_of(2)
    sampler = Sampler(SamplingParams(**OFF, temp=0.5), VOCAB)
    assert np.allclose(spread(sampler, logits), softmax(logits / np.float32(0.5)), rtol=1e-5)


def test_default_chain_in_llama_cpps_order() -> None:
    """The default chain is top_k 40, then top_p, then min_p, and the temperature last."""
    logits = logits_of(3, 400)
    order = np.argsort(-logits)[:40]
    chances = softmax(logits[order])
    nucleus = order[: int(np.searchsorted(np.cumsum(chances), 0.95)) + 1]
    kept = nucleus[chances[: len(nucleus)] >= 0.05 * chances[0]]
    expected = np.zeros(400)
    expected[kept] = softmax(logits[kept] / np.float32(0.8))
    assert np.allclose(spread(Sampler(SamplingParams(), 400), logits), expected, rtol=1e-5)


def test_order_of_samplers_matters() -> None:
    """A temperature before min_p changes what min_p keeps."""
    logits = np.array([0, -2, -4], np.float32)
    last = Sampler(SamplingParams(samplers="min_p;temperature", min_p=0.1, temp=4), 3)
    first = Sampler(SamplingParams(samplers="temperature;min_p", min_p=0.1, temp=4), 3)
    assert (spread(last, logits) > 0).tolist() == [True, True, False]
    assert (spread(first, logits) > 0).tolist() == [True, True, True]


@pytest.mark.parametrize("samplers", [SamplingParams().samplers, "top_k", ""])
def test_greedy_takes_the_first_of_the_highest(samplers: Any) -> None:
    """A temperature of 0 takes the likeliest token, the lowest id of equals, even where the chain lacks it."""
    logits = np.array([1, 5, 2, 5], np.float32)
    sampler = Sampler(SamplingParams(temp=0, samplers=samplers), 4)
    assert sampler.sample(logits) == 1
    assert spread(sampler, logits).tolist() == [0, 1, 0, 0]


def test_greedy_after_penalties_and_truncation() -> None:
    """A greedy choice comes after the penalties, and among what a truncation before them has left."""
    logits = np.array([1, 5, 4.5], np.float32)
    early = Sampler(SamplingParams(temp=0, repeat_penalty=2), 3)
    late = Sampler(SamplingParams(temp=0, repeat_penalty=2, top_k=1, samplers="top_k;penalties"), 3)
    for sampler in early, late:
        sampler.accept(1)
    assert early.sample(logits) == 2
    assert late.sample(logits) == 1


@pytest.mark.parametrize(("window", "penalised"), [(0, []), (2, [2, 3]), (64, [1, 2, 3]), (-1, [1, 2, 3])])
def test_penalty_window(window: int, penalised: list[int]) -> None:
    """Only the last repeat_last_n accepted tokens are penalised, prompt tokens included."""
    sampler = Sampler(SamplingParams(**OFF, temp=1, presence_penalty=3, repeat_last_n=window), 5)
    sampler.accept(1, 2)
    sampler.accept(3)
    expected = np.zeros(5)
    expected[penalised] = -3
    assert np.allclose(spread(sampler, np.zeros(5, np.float32)), softmax(expected))


def test_window_longer_than_the_first_buffer() -> None:
    """The memory of tokens grows, and its end is what a window sees."""
    sampler = Sampler(SamplingParams(**OFF, temp=1, frequency_penalty=0.01, repeat_last_n=-1), 3)
    sampler.accept(*[0] * 700)
    for _ in range(700):
        sampler.accept(1)
    assert np.allclose(spread(sampler, np.zeros(3, np.float32)), softmax(np.array([-7, -7, 0])))


def test_bias_and_end_tokens() -> None:
    """A bias moves its token, and ignore_eos rules the end tokens out."""
    params = SamplingParams(**OFF, temp=1, logit_bias={0: 2.0, 4: -math.inf}, ignore_eos=True)
    found = spread(Sampler(params, 5, end_ids=(2,)), np.zeros(5, np.float32))
    assert np.allclose(found, softmax(np.array([2, 0, -np.inf, 0, -np.inf])))


def test_dry_asks_for_breakers_once_and_only_if_on() -> None:
    """DRY looks its breakers up when it is on, and is refused without a vocabulary to look in."""
    asked: list[tuple[str, ...]] = []

    def find(texts: Any) -> dict[int, set[tuple[int, ...]]]:
        asked.append(tuple(texts))
        return {4: {()}}

    Sampler(SamplingParams(), 5, breakers=find)
    assert not asked
    sampler = Sampler(SamplingParams(temp=0, dry_multiplier=2), 5, breakers=find)
    assert asked == [("\n", ":", '"', "*")]
    sampler.accept(1, 2, 3, 1, 2)
    assert sampler.sample(np.array([0, 0, 0, 1, 0], np.float32)) == 0
    sampler.accept(4, 1, 2)
    assert sampler.sample(np.array([0, 0, 0, 1, 0], np.float32)) == 0
    with pytest.raises(RequestError, match="dry_sequence_breakers"):
        Sampler(SamplingParams(dry_multiplier=2), 5)
    Sampler(SamplingParams(dry_multiplier=2, dry_sequence_breakers=()), 5)


def draws(sampler: Sampler, count: int = 60) -> list[int]:
    found = []
    for step in range(count):
        found.append(sampler.sample(logits_of(step)))
        sampler.accept(found[-1])
    return found


@pytest.mark.parametrize(
    "given", [{}, {"xtc_probability": 0.5}, {"mirostat": 1}, {"mirostat": 2}, {"repeat_penalty": 1.3}]
)
def test_same_seed_same_text(given: dict[str, Any]) -> None:
    """A seed fixes the text, reset starts it again, and another seed gives another."""
    first, other = (Sampler(SamplingParams(seed=seed, **given), VOCAB) for seed in (5, 6))
    text = draws(first)
    assert draws(Sampler(SamplingParams(seed=5, **given), VOCAB)) == text
    first.reset()
    assert draws(first) == text
    assert draws(other) != text


def test_random_seed_can_be_used_again() -> None:
    """A sampler that chose its own seed says which, and two of them differ."""
    one, two = Sampler(SamplingParams(), VOCAB), Sampler(SamplingParams(seed=None), VOCAB)
    assert one.seed != two.seed
    assert draws(one) == draws(Sampler(SamplingParams(seed=one.seed), VOCAB))


@pytest.mark.parametrize(
    "given", [{"mirostat": 2}, {"repeat_penalty": 1.5, "xtc_probability": 0.3, "repeat_last_n": 8}]
)
def test_clone_goes_its_own_way(given: dict[str, Any]) -> None:
    """A clone goes on as the original would, and neither changes the other."""
    sampler = Sampler(SamplingParams(seed=1, **given), VOCAB)
    draws(sampler, 20)
    clone = sampler.clone()
    assert draws(clone) == draws(sampler)


def test_probabilities_change_nothing() -> None:
    """Asking for probabilities uses up no random numbers, and shows what XTC will do next."""
    asked, plain = (Sampler(SamplingParams(seed=2, xtc_probability=0.5, temp=1), VOCAB) for _ in range(2))
    for step in range(40):
        ids, chances = asked.probabilities(logits_of(step))
        assert math.isclose(chances.sum(), 1)
        assert (np.diff(chances) <= 0).all()
        token = asked.sample(logits_of(step))
        assert token in ids
        assert token == plain.sample(logits_of(step))


def test_mirostat_steers_the_surprise() -> None:
    """Over 300 tokens the mean surprise under Mirostat 2 comes near its target."""
    sampler = Sampler(SamplingParams(seed=1, mirostat=2, mirostat_tau=2.0, temp=1), 2000)
    surprise = []
    for step in range(300):
        ids, chances = sampler.probabilities(logits_of(step, 2000))
        token = sampler.sample(logits_of(step, 2000))
        surprise.append(-math.log2(chances[ids.tolist().index(token)]))
    assert abs(np.mean(surprise[50:]) - 2.0) < 0.2


def test_callables_stand_anywhere() -> None:
    """A callable sees the whole vocabulary and the text so far, and runs at its place in the order."""
    seen: list[tuple[list[float], list[int]]] = []

    def favour(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
        assert not ids.flags.writeable
        seen.append((logits.tolist(), ids.tolist()))
        return np.where(np.arange(4) == 0, 9, logits)

    logits = np.array([0, 3, 2, 1], np.float32)
    after = Sampler(SamplingParams(temp=0, top_k=2, samplers=("top_k", favour, "temperature")), 4)
    after.accept(2, 3)
    assert after.sample(logits) == 0
    before = Sampler(SamplingParams(temp=0, top_k=2), 4, extra=[favour])
    assert before.sample(logits) == 0
    assert seen == [([-math.inf, 3, 2, -math.inf], [2, 3]), ([0, 3, 2, 1], [])]


def test_a_callable_may_rule_out_nearly_everything() -> None:
    """A mask that leaves one token is obeyed through the whole chain."""

    def only_seven(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
        return np.where(np.arange(VOCAB) == 7, logits, -np.inf)

    params = SamplingParams(typical_p=0.5, top_n_sigma=1, dynatemp_range=0.2, repeat_penalty=1.2)
    sampler = Sampler(params, VOCAB, extra=[only_seven])
    sampler.accept(7)
    assert sampler.sample(logits_of(1)) == 7


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("bad", [[NAN, 1, 2], [INF, 1, 2]])
@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_logits_that_are_no_numbers(bad: list[float], temp: float) -> None:
    """NaN and infinite logits are an error and never a random token."""
    with pytest.raises(PunaError, match="logits: the highest logit is"):
        Sampler(SamplingParams(temp=temp), 3).sample(np.array(bad, np.float32))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampler(SamplingParams(), 3).sample(np.full(3, -np.inf, np.float32)), "logits: every token"),
        (lambda: Sampler(SamplingParams(), 3).sample(np.zeros(4, np.float32)), r"shape \[4\] where \[3\]"),
        (lambda: Sampler(SamplingParams(logit_bias={3: 1.0}), 3), "token 3 is outside"),
        (lambda: Sampler(SamplingParams(), 3).accept(1, 3), "accept: tokens from 1 to 3"),
        (
            lambda: Sampler(SamplingParams(logit_bias=dict.fromkeys(range(3), -INF)), 3).sample(
                np.zeros(3, np.float32)
            ),
            "logit_bias: every token is ruled out",
        ),
        (
            lambda: Sampler(SamplingParams(), 3, extra=[lambda logits, ids: logits[:2]]).sample(
                np.zeros(3, np.float32)
            ),
            r"sampler '<lambda>': logits of shape \[2\]",
        ),
    ],
)
def test_impossible_requests(make: Any, message: str) -> None:
    """What cannot be sampled is refused by name."""
    with pytest.raises(RequestError, match=message):
        make()
