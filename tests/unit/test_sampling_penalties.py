"""Biases, repetition penalties and DRY against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.sampling.candidates import Candidates, top
from puna.sampling.penalties import bias, dry, find_breakers, penalties


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


LOGITS = np.array([2.0, -1.0, 0.0, 3.0, -np.inf, 0.5], np.float32)


def test_bias_adds_and_rules_out() -> None:
    """A bias is added to its token alone, and -inf rules the token out; the logits given stay as they are."""
    before = LOGITS.copy()
    found = bias(Candidates(LOGITS), ints([3, 0]), np.array([1.5, -np.inf], np.float32))
    assert found.logits.tolist() == [-np.inf, -1.0, 0.0, 4.5, -np.inf, 0.5]
    assert LOGITS.tolist() == before.tolist()


def test_penalties_scale_by_sign_and_count() -> None:
    """Repetition divides positive logits and multiplies others; frequency counts, presence does not."""
    found = penalties(Candidates(LOGITS), ints([0, 1, 1, 2, 0, 0, 5]), 2.0, 0.5, 0.25)
    expected = [2.0 / 2 - 1.75, -1.0 * 2 - 1.25, 0.0 - 0.75, 3.0, -np.inf, 0.5 / 2 - 0.75]
    assert found.logits.tolist() == expected


def test_penalties_find_tokens_among_few_candidates() -> None:
    """After a truncation only the candidates that are left are penalised, by id and not by position."""
    few = top(Candidates(LOGITS), 3)  # ids 3, 0, 5
    found = penalties(few, ints([5, 5, 1, 4]), 1.0, 1.0, 0.0)
    assert found.ids is not None
    assert dict(zip(found.ids.tolist(), found.logits.tolist(), strict=True)) == {3: 3.0, 0: 2.0, 5: -1.5}


def test_penalties_of_an_empty_window() -> None:
    """With no text yet nothing changes."""
    candidates = Candidates(LOGITS)
    assert penalties(candidates, ints([]), 2.0, 1.0, 1.0) is candidates


def definition(window: list[int], breakers: set[int], allowed: int) -> dict[int, int]:
    """Token -> length of the longest repetition of the window's end that it would go on with, by trying all."""
    longest: dict[int, int] = {}
    for end in range(len(window) - 1):
        length = 0
        while (
            length <= end
            and window[end - length] == window[-1 - length]
            and window[-1 - length] not in breakers
        ):
            length += 1
        if length >= allowed and window[end + 1] not in breakers:
            longest[window[end + 1]] = max(length, longest.get(window[end + 1], 0))
    return longest


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40), st.sets(st.integers(0, 5), max_size=2), st.integers(1, 4))
def test_dry_against_its_definition(window: list[int], stops: set[int], allowed: int) -> None:
    """DRY takes multiplier * base^(length - allowed) from tokens that go on with a repetition of allowed length."""
    logits = np.zeros(6, np.float32)
    breakers = {token: [()] for token in stops}
    found = dry(Candidates(logits), ints(window), breakers, 0.8, 1.75, allowed)
    expected = np.zeros(6)
    for token, length in definition(window, stops, allowed).items():
        expected[token] = -0.8 * 1.75 ** (length - allowed)
    assert np.allclose(found.logits, expected, rtol=1e-6)


def test_dry_penalty_stays_finite() -> None:
    """A repetition of thousands of tokens yields the largest float32, not an overflow."""
    found = dry(Candidates(np.zeros(3, np.float32)), ints([1] * 3000), {}, 5.0, 1.75, 2)
    assert np.isfinite(found.logits).all()
    assert found.logits[1] < -1e38
    assert found.logits[[0, 2]].tolist() == [0, 0]


def test_dry_with_allowed_length_zero_penalises_every_follower() -> None:
    """With an allowed length of 0 every token after the first of the window loses at least the multiplier."""
    found = dry(Candidates(np.zeros(4, np.float32)), ints([0, 1, 2]), {}, 1.0, 2.0, 0)
    assert found.logits.tolist() == [0, -1, -1, 0]


def test_dry_breaker_of_several_tokens() -> None:
    """A breaker of two tokens cuts the repetition after its second, and one of its tokens alone does not."""
    window, logits = ints([7, 1, 2, 3, 7, 1, 2]), np.zeros(9, np.float32)
    assert dry(Candidates(logits), window, {1: [(5,)]}, 1.0, 2.0, 2).logits[3] == -2
    assert dry(Candidates(logits), window, {7: [(1,)]}, 1.0, 2.0, 1).logits[3] == -1
    assert dry(Candidates(logits), window, {7: [(1,)]}, 1.0, 2.0, 2).logits[3] == 0
    assert dry(Candidates(logits), window, {7: [(), (1,)]}, 1.0, 2.0, 2).logits[3] == 0


PIECES = [b"a", b"b", b"c", b"ab", b"xa", b"xabc", b"bc", "é".encode(), b"\xc3"]
SPELL = {"b": [1], "bc": [6], "c": [2]}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a"], {0: {()}, 3: {()}, 4: {()}, 5: {()}}),
        (["abc"], {0: {(6,)}, 3: {(2,)}, 4: {(6,)}, 5: {()}}),
        (["é"], {7: {()}}),
        ([], {}),
    ],
)
def test_breakers_are_found_in_the_vocabulary(
    texts: list[str], expected: dict[int, set[tuple[int, ...]]]
) -> None:
    """A token that holds a breaker breaks alone; one that ends with its beginning needs the rest to follow."""
    assert find_breakers(texts, PIECES, SPELL.__getitem__) == expected
