"""Sequences of a model's cache in a caller's hands: what is refused, what is taken back, what they are seen to hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from cache_accounts import accounts, nothing_held
from endless_models import letters, load_endless
from tiny_model import write_tiny

import puna
from puna.cache import KVCache, NoRoomError
from puna.cache import Sequence as CacheSequence
from puna.errors import RequestError
from puna.plan import KVGroup, KVLayout

PAGE = 64


@pytest.fixture
def endless(tmp_path: Path) -> puna.Model:
    return load_endless(tmp_path)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> puna.Model:
    """All positions of a context of 256, eight tokens a step."""
    path = write_tiny(tmp_path_factory.mktemp("small") / "m.gguf")
    return puna.load(path, backend="reference", n_ctx=256, n_batch=8)


def ids(count: int, start: int = 0) -> list[int]:
    return [7 + (start + 3 * i) % 101 for i in range(count)]


def test_two_texts_in_one_sequence(small: puna.Model) -> None:
    """Streams that take turns on one sequence write what each writes alone; what that costs is counted."""
    first, second = ids(12), ids(15, 5)
    how: dict[str, Any] = {"temp": 0, "ignore_eos": True}
    alone = [list(small.stream(prompt, 12, **how)) for prompt in (first, second)]
    sequence = small.cache.open()
    one, other = (small.stream(prompt, 12, sequence=sequence, **how) for prompt in (first, second))
    text = next(one)
    assert next(other) + next(other) == "".join(alone[1][:2])
    assert text + "".join(one) == "".join(alone[0])
    assert "".join(other) == "".join(alone[1][2:])
    assert one.timings.recomputed > 0
    small.cache.close(sequence)
    nothing_held(small)


def test_writing_to_a_sequence_between_pieces(endless: puna.Model) -> None:
    """A stream whose sequence was cut, added to or closed meanwhile goes on with its own text, or says why not."""
    sequence = endless.cache.open()
    stream = endless.stream("a", 20, sequence=sequence, temp=0)
    text = next(stream) + next(stream)
    endless.step(sequence, ids(3))
    text += next(stream)
    endless.cache.truncate(sequence, 1)
    assert text + next(stream) == letters(4)
    endless.cache.close(sequence)
    with pytest.raises(RequestError, match="closed"):
        next(stream)
    nothing_held(endless)


def test_another_text_during_a_step(endless: puna.Model) -> None:
    """What another thread wrote to the sequence while a step ran is not taken for the text's own."""
    sequence, feed = endless.cache.open(), endless.feed

    def disturbed(one: CacheSequence, tokens: Any) -> Any:
        endless.cache.truncate(one, 0)
        feed(one, ids(4))
        return feed(one, tokens)

    with mock.patch.object(endless, "feed", disturbed):
        stream = endless.stream("a", 20, sequence=sequence, temp=0)
    with pytest.raises(RequestError, match="a sequence of its own"):
        next(stream)


def test_a_step_of_nothing(small: puna.Model) -> None:
    """There are no logits after no token."""
    sequence = small.cache.open()
    with pytest.raises(RequestError, match="none is given"):
        small.step(sequence, [])
    small.cache.close(sequence)


def test_a_long_step_without_room(small: puna.Model) -> None:
    """Ids of several steps that do not all fit are refused before the first is computed."""
    sequence, other = small.cache.open(), small.cache.open()
    small.step(sequence, ids(10))
    small.step(other, ids(130))
    runs = mock.patch.object(small.backend, "run", side_effect=AssertionError("computed"))
    with runs, pytest.raises(NoRoomError, match="110 tokens do not fit: the cache has room for 64"):
        small.step(sequence, ids(100))
    with runs, pytest.raises(RequestError, match="257 tokens do not fit the context of 256"):
        small.step(sequence, ids(247))
    with runs, pytest.raises(RequestError, match="999 is not in the vocabulary"):
        small.step(sequence, [*ids(20), 999])
    assert len(sequence) == 10
    for one in (sequence, other):
        small.cache.close(one)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_step_that_fails_half_way(small: puna.Model, error: type[BaseException]) -> None:
    """Nothing of a step's ids stays behind, and what was held before has the logits that it had."""
    sequence, run, calls = small.cache.open(), small.backend.run, list[int]()
    small.step(sequence, ids(70))
    wanted = small.step(small.cache.copy(sequence), [9])

    def fails(*given: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise error
        run(*given)

    with mock.patch.object(small.backend, "run", fails), pytest.raises(error):
        small.step(sequence, ids(30, 1))
    assert sequence.tokens == ids(70)
    assert np.array_equal(small.step(sequence, [9]), wanted)
    for one in list(small.cache.sequences):
        small.cache.close(one)
    nothing_held(small)


def test_one_prompt_where_several_are_wanted(endless: puna.Model) -> None:
    """A text, or its ids, is not taken for a list of prompts."""
    for prompt in ("Once", ids(4), np.array(ids(4))):
        with pytest.raises(RequestError, match="this is one prompt; give a list"):
            endless.generate_all(prompt, 2)  # type: ignore[arg-type]
    assert endless.generate_all((prompt for prompt in "ab"), 2, temp=0) == ["bc", "cd"]  # type: ignore[arg-type]


USES: dict[str, Callable[[puna.Model, Any], object]] = {
    "step": lambda model, sequence: model.step(sequence, [1]),
    "run": lambda model, sequence: model.run(sequence, [1], [], np.empty((0, model.n_vocab), np.float32)),
    "stream": lambda model, sequence: next(model.stream("a", 2, sequence=sequence)),
    "reuse": lambda model, sequence: model.cache.reuse(sequence, [1, 2]),
    "truncate": lambda model, sequence: model.cache.truncate(sequence, 0),
    "copy": lambda model, sequence: model.cache.copy(sequence),
}


@pytest.mark.parametrize("use", USES)
def test_sequences_of_others(endless: puna.Model, use: str, tmp_path: Path) -> None:
    """A sequence of another model's cache, or a closed one, is refused first, and nothing is taken for it."""
    metadata = {"gemma3.attention.sliding_window_pattern": puna.gguf.Value(puna.gguf.ValueType.UINT32, 2)}
    path = write_tiny(tmp_path / "other.gguf", architecture="gemma3", metadata=metadata)
    strange = puna.load(path, backend="reference", n_ctx=64).cache.open()
    assert len(strange.pages) != len(endless.cache.open().pages)
    closed = endless.cache.open()
    endless.cache.close(closed)
    for sequence, what in ((strange, "no sequence of the model"), (closed, "is closed")):
        with pytest.raises(RequestError, match=what):
            USES[use](endless, sequence)
    assert len(endless.cache.sequences) == 1
    accounts(endless.cache)


@pytest.mark.parametrize("length", [2.5, None, "1"])
def test_lengths_that_are_none(endless: puna.Model, length: Any) -> None:
    """A sequence is cut to a whole number of tokens."""
    with pytest.raises(RequestError, match="cannot truncate"):
        endless.cache.truncate(endless.cache.open(), length)


@pytest.mark.parametrize("window", [None, 100])
def test_what_is_known_without_full_attention(window: int | None) -> None:
    """Where no layer keeps all positions, a new text is not said to be known; one that has been there is."""
    groups = () if window is None else (KVGroup(window, (0,), 12),)
    widths = {0: (1, 4, 4)} if window else {}
    layout = KVLayout(widths, "F32", "F32", groups, 1024, states={"scan": (2, 2)}, slots=13)
    kv, text = KVCache(layout, 1000), list(range(200))
    first = kv.open()
    reuse = kv.reuse(first, text)
    assert (reuse.count, reuse.reason[:43]) == (0, "nothing is known that has the same tokens f")
    assert first.states.fork == 0
    kv.append((first, text), outputs=[])
    kv.append((first, [1]), outputs=[])
    assert kv.reuse(kv.open(), text).count == 192
    if window:  # pages are known from 64 on, but no state there
        reuse = kv.reuse(kv.open(), text[:150])
        assert (reuse.count, reuse.reason) == (0, "positions 0 to 127 are known, but no state is kept there")


def test_a_cache_says_what_it_holds() -> None:
    """Ten texts with one beginning of 1,000 tokens hold its bytes once; closed, they are remembered."""
    layout = KVLayout.uniform({0: (1, 4, 4), 1: (2, 4, 4)}, "F32", "F32", 4096)
    kv, system = KVCache(layout, 4096), list(range(1000))
    texts = [kv.open() for _ in range(10)]
    for n, text in enumerate(texts):
        new = [*system, 5000 + n, 1]
        kv.append((text, new[kv.reuse(text, new).count :]), outputs=[])
        kv.append((text, [2]), outputs=[])
    report = kv.report
    page = PAGE * (4 + 4) * 4 * 3  # keys and values of three heads, float32
    assert (report.sequences, report.nbytes, report.groups[0].pages) == (10, 64 * page, 64)
    assert (report.held, report.shared, report.remembered) == ((15 + 10) * page, 15 * page, 0)
    for text in texts:
        kv.close(text)
    assert (kv.report.held, kv.report.remembered) == (0, 15 * page)


def test_states_are_counted(tmp_path: Path) -> None:
    """All bytes of a model's cache are in its report but for the empty state, and a step holds slots."""
    path = write_tiny(tmp_path / "m.gguf", architecture="lfm2")
    cache = puna.load(path, backend="reference", n_ctx=256).cache
    assert cache.report.nbytes + cache.layout.slot_bytes == cache.layout.nbytes
    assert cache.report.held == 0
    cache.append((cache.open(), [1, 2]), outputs=[])
    assert (cache.report.states.held, cache.report.groups[0].held) == (1, 1)
