"""Stop strings, against a search of the whole text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.errors import RequestError
from puna.sampling import StopMatcher


def stream(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """(all text emitted, the stop that matched)."""
    matcher, emitted = StopMatcher(stops), ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        emitted += text
        assert stopped is (matcher.stop is not None)
    return emitted + matcher.finish(), matcher.stop


def search(stops: list[str], text: str) -> tuple[str, str | None]:
    """The same by definition: the first place where a stop is complete, and the longest that ends there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


words = st.text("ab", min_size=1, max_size=5)


@settings(deadline=None)
@given(st.lists(words, max_size=4), st.text("abc", max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_stops_do_not_depend_on_the_pieces(stops: list[str], text: str, cuts: list[int]) -> None:
    """However the text is cut, what is emitted and what matched equal a search of the whole text."""
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert stream(stops, pieces) == search(stops, text)


@settings(deadline=None)
@given(st.lists(words, min_size=1, max_size=3), st.text("abc", max_size=30))
def test_nothing_is_held_longer_than_needed(stops: list[str], text: str) -> None:
    """After each character only the longest end of the text that begins a stop string is held back."""
    matcher, emitted = StopMatcher(stops), ""
    for position, character in enumerate(text, start=1):
        piece, stopped = matcher.push(character)
        if stopped:
            break
        emitted += piece
        held = text[len(emitted) : position]
        starts = [
            text[k:position] for k in range(position) if any(s.startswith(text[k:position]) for s in stops)
        ]
        assert held == (starts[0] if starts else "")


def test_text_after_a_stop_is_dropped() -> None:
    """After the stop there is no text, in the same piece or in later ones."""
    matcher = StopMatcher(["END"])
    assert matcher.push("so E") == ("so ", False)
    assert matcher.push("ND and more") == ("", True)
    assert matcher.push("still") == ("", True)
    assert matcher.finish() == ""
    assert matcher.stop == "END"


def test_no_stops_pass_everything() -> None:
    """Without stop strings every piece comes out at once."""
    matcher = StopMatcher([])
    assert matcher.push("any text") == ("any text", False)
    assert matcher.finish() == ""


def test_empty_stop_is_refused() -> None:
    """An empty stop string would match everywhere."""
    with pytest.raises(RequestError, match="stop: a stop string is empty"):
        StopMatcher(["a", ""])


def test_time_is_linear() -> None:
    """A text that almost matches everywhere takes steps in proportion to its length, not to its square."""
    matcher, steps = StopMatcher(["a" * 2000 + "b"]), 0

    class Counting(dict[str, int]):
        def __contains__(self, key: object) -> bool:
            nonlocal steps
            steps += 1
            return super().__contains__(key)

    matcher._next = [Counting(longer) for longer in matcher._next]
    for _ in range(100):
        matcher.push("a" * 200)
    assert steps < 3 * 100 * 200
