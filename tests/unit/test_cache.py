"""Pages and the sequences that own them, against memory that is written as a backend would."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from contextlib import suppress
from itertools import accumulate
from math import prod
from pathlib import Path

import numpy as np
import pytest
from cache_accounts import accounts

from puna.backends import base as backends
from puna.cache import KVCache, Sequence, saved
from puna.cache.kv import GONE
from puna.cache.states import EMPTY
from puna.errors import RequestError
from puna.plan import Batch, KVGroup, KVLayout, Span

PAGE = 64


def cache(n_ctx: int = 300) -> KVCache:
    return KVCache(KVLayout.uniform({0: (1, 4, 4)}, "F32", "F32", n_ctx), n_ctx)


def windowed(n_ctx: int = 1000, window: int = 100, pages: int = 12) -> KVCache:
    """Layer 0 keeps all positions, layer 1 a window."""
    whole = -(-n_ctx // PAGE)
    groups = KVGroup(0, (0,), whole), KVGroup(window, (1,), pages)
    widths = {0: (1, 4, 4), 1: (1, 4, 4)}
    return KVCache(KVLayout(widths, "F32", "F32", groups, whole * PAGE), n_ctx)


def recurrent(n_ctx: int = 1000, slots: int = 13) -> KVCache:
    """Layer 0 keeps all positions, layer 1 a window; two operations carry a state."""
    layout, states = windowed(n_ctx).layout, {"conv": (3, 4), "scan": (2, 2)}
    return KVCache(dataclasses.replace(layout, states=states, slots=slots), n_ctx)


def held(kv: KVCache, sequence: Sequence, tokens: list[int]) -> Batch:
    return kv.append((sequence, tokens), outputs=[])


def test_append_describes_the_step() -> None:
    """A batch of two sequences gives each row its position and each span its pages."""
    kv = cache()
    a, b = kv.open(), kv.open()
    kv.append((a, range(70)), outputs=[69])
    batch = kv.append((a, [7, 8]), (b, [9]), outputs=[1, 2])
    assert batch.tokens.tolist() == [7, 8, 9]
    assert batch.positions.tolist() == [70, 71, 0]
    assert [(s.start, s.count, s.past, s.length, len(s.pages[0])) for s in batch.spans] == [
        (0, 2, 70, 72, 2),
        (2, 1, 0, 1, 1),
    ]
    assert set(a.pages[0]).isdisjoint(b.pages[0])
    assert batch.outputs.dtype == np.int32
    assert batch.copies == ()


def test_overflow_changes_nothing() -> None:
    """A step that does not fit names both numbers and leaves the cache as it was."""
    kv = cache(100)
    a = kv.open()
    held(kv, a, list(range(90)))
    with pytest.raises(RequestError, match="101 tokens do not fit the context of 100"):
        held(kv, a, list(range(11)))
    assert len(a) == 90
    assert kv.room(a) == 100
    with pytest.raises(RequestError, match=r"65 more tokens do not fit.* room for 0 beside"):
        held(kv, kv.open(), list(range(65)))
    held(kv, a, list(range(10)))


def test_truncate_bounds() -> None:
    """A sequence can only be cut to a length it has."""
    kv = cache()
    a = kv.open()
    held(kv, a, list(range(5)))
    for length in (-1, 6):
        with pytest.raises(RequestError, match="cannot truncate"):
            kv.truncate(a, length)


def test_closed_sequences_are_refused() -> None:
    """What is closed can neither grow nor be copied."""
    kv = cache()
    a = kv.open()
    kv.close(a)
    kv.close(a)
    with pytest.raises(RequestError, match="closed"):
        held(kv, a, [1])
    with pytest.raises(RequestError, match="closed"):
        kv.copy(a)


def test_common_prefix() -> None:
    """The shared beginning of a sequence and new ids is counted, whichever is longer."""
    a = Sequence()
    a.tokens = [1, 2, 3]
    assert [a.common_prefix(ids) for ids in ([], [1, 2], [1, 2, 3, 4], [1, 9, 3], [5])] == [0, 2, 3, 1, 0]


def test_a_beginning_is_kept_once() -> None:
    """Ten texts with one beginning of 1,000 tokens hold its 15 full pages once, and say why not more."""
    kv = cache(4096)
    system = list(range(1000))
    texts = []
    for n in range(10):
        texts.append(kv.open())
        found = kv.reuse(texts[-1], [*system, 5000 + n, 1])
        assert found.count == (960 if n else 0)
        held(kv, texts[-1], [*system, 5000 + n, 1][found.count :])
        if n == 1:
            assert "do not fill a page" in found.reason
        kv.append((texts[-1], [2]), outputs=[])
    pages = Counter(page for text in texts for page in text.pages[0])
    assert sum(count == 10 for count in pages.values()) == 15
    assert len(pages) == 15 + 10


def test_a_closed_text_can_be_taken_up_again() -> None:
    """Full pages outlive their sequence until their room is needed: the first let go of gives way."""
    kv = cache(5 * PAGE)
    first, second = list(range(130)), list(range(1000, 1130))
    for text in (first, second):
        sequence = kv.open()
        held(kv, sequence, text)
        kv.close(sequence)
    taken = kv.open()
    assert kv.reuse(taken, [*first, 7]).count == 128
    kv.close(taken)
    long = kv.open()
    held(kv, long, list(range(2000, 2000 + 3 * PAGE)))  # takes the free page and the second text's
    kv.close(long)
    assert kv.reuse(kv.open(), [*second, 7]).count == 0
    assert kv.reuse(kv.open(), [*first, 7]).count == 128


def test_the_last_token_is_left() -> None:
    """A text that is known whole still computes its last token, whose logits are wanted."""
    kv = cache()
    a = kv.open()
    held(kv, a, list(range(128)))
    kv.close(a)
    assert kv.reuse(kv.open(), list(range(128))).count == 64
    with pytest.raises(RequestError, match="holds 64 tokens already"):
        kv.reuse(kv.sequences[-1], list(range(128)))


def test_a_copy_goes_its_own_way() -> None:
    """Who goes on within a shared page gets a copy of it; the other keeps the page."""
    kv = cache()
    a = kv.open()
    held(kv, a, list(range(100)))
    b = kv.copy(a)
    assert a.pages == b.pages
    batch = held(kv, b, [500])
    assert batch.copies == ((0, a.pages[0][1], b.pages[0][1]),)
    assert a.pages[0][0] == b.pages[0][0]
    assert held(kv, a, [600]).copies == ()


def test_windows_keep_only_what_is_looked_at() -> None:
    """A layer with a window lets go of pages that it looks back to no more, and takes few in all."""
    kv = windowed(4096, window=100, pages=6)
    a = kv.open()
    for n in range(100):
        held(kv, a, list(range(40 * n, 40 * n + 40)))
        assert sum(page != GONE for page in a.pages[1]) <= 4
    assert a.pages[1].count(GONE) == (3960 - 99) // PAGE
    assert GONE not in a.pages[0]


def test_a_window_that_is_lost() -> None:
    """Cutting back to where a window's pages are gone leaves nothing; where they are still known, all."""
    kv = windowed(1000, window=100, pages=12)
    a = kv.open()
    for start in range(0, 640, 64):
        held(kv, a, list(range(start, start + 64)))
    assert kv.truncate(a, 300) == 300
    small = windowed(1000, window=100, pages=5)
    c = small.open()
    for start in range(0, 640, 64):
        held(small, c, list(range(start, start + 64)))
    assert small.truncate(c, 200) == 0
    assert len(c) == 0


def test_states_are_kept_at_page_borders() -> None:
    """A text goes on from the last border of pages, in another sequence or cut back; the rest is computed again."""
    kv = recurrent()
    a = kv.open()
    (first,) = held(kv, a, list(range(100))).spans
    assert [(s.start, s.count) for s in first.segments] == [(0, 64), (64, 36)]
    assert first.segments[0].source == EMPTY
    assert first.segments[1].source == first.segments[0].target
    held(kv, a, list(range(100, 200)))
    held(kv, a, [7])
    found = kv.reuse(kv.open(), [*range(190), 5, 6])
    assert found.count == 64
    assert "positions 64 to 127 are known, but no state" in found.reason
    assert kv.reuse(kv.open(), [*range(199), 5, 6]).count == 192
    assert kv.truncate(a, 199) == 192
    assert kv.truncate(a, 191) == 64
    assert kv.truncate(a, 64) == 64
    assert kv.truncate(a, 63) == 0


def test_a_state_is_kept_where_texts_fork() -> None:
    """The second text with a beginning in common leaves a state where the others will go on from."""
    kv = recurrent()
    counts = []
    for n in range(4):
        sequence, text = kv.open(), [*range(300), *range(1000 * n, 1000 * n + 150)]
        counts.append(kv.reuse(sequence, text).count)
        held(kv, sequence, text[counts[-1] :])
        held(kv, sequence, [7])
        kv.close(sequence)
    assert counts == [0, 0, 256, 256]


def test_a_failed_step_leaves_the_state() -> None:
    """The slot that a step reads is kept until the next one begins, so taking the step back costs nothing."""
    kv = recurrent()
    a = kv.open()
    before = held(kv, a, list(range(10))).spans[0].segments[-1].target
    for _ in range(30):
        assert held(kv, a, list(range(100))).spans[0].segments[0].source == before
        kv.undo(a, 10)
    kv.undo(a, 10)
    assert held(kv, a, [1]).spans[0].segments[0].source == before


def test_slots_run_out_aloud() -> None:
    """Sequences that hold all slots are an error that says so, and others leave room when they are closed."""
    kv = recurrent(slots=4)
    a, b = kv.open(), kv.open()
    held(kv, a, [1])
    held(kv, a, [1])
    held(kv, b, [1])
    assert (kv.room(a), kv.room(b), kv.room()) == (960, 1, 0)
    with pytest.raises(RequestError, match="slots for 3 states"):
        held(kv, b, [1])
    held(kv, a, [1])
    kv.close(a)
    held(kv, b, [1])


def hashes(text: list[int]) -> list[int]:
    """Of each beginning of a text, the empty one first."""
    return list(accumulate(text, lambda before, token: hash((before, token)), initial=1))


class Memory:
    """What a backend would hold: for each group and page, a hash of the token and the text before it, of each row.

    states: of the text that each slot stands for. Both are views of arrays as a backend has them.
    """

    def __init__(self, kv: KVCache) -> None:
        self.kv = kv
        sizes = kv.layout.states.items()
        arrays = {name: np.zeros((kv.layout.slots, prod(shape) // 2), np.int64) for name, shape in sizes}
        pages = {n: (np.zeros((p.count, PAGE, 2), np.int64),) * 2 for n, p in enumerate(kv.pools)}
        self.whole = backends.Memory(pages, arrays)
        self.rows = [keys[:, :, 0] for keys, _ in pages.values()]
        self.states = arrays["scan"][:, 0] if arrays else np.zeros(1, np.int64)
        self.states[EMPTY] = hashes([])[0]

    def run(self, batch: Batch, texts: list[list[int]]) -> None:
        for group, source, target in batch.copies:
            self.rows[group][target] = self.rows[group][source]
        for span, beginnings in zip(batch.spans, map(hashes, texts), strict=True):
            for group, (pages, pool) in enumerate(zip(span.pages, self.kv.pools, strict=True)):
                for position in range(span.past, span.length):
                    page = int(pages[position // PAGE])
                    assert pool.holders[page] == 1, "a shared page is written"
                    assert pool.keys[page] is None, "a page that others may find is written"
                    self.rows[group][page][position % PAGE] = beginnings[position + 1]
            self.walk(span, beginnings)

    def walk(self, span: Span, beginnings: list[int]) -> None:
        """Each segment reads what the one before wrote, and writes a slot that none but its sequence knows."""
        done, pool = span.past, self.kv.states.pool
        for segment in span.segments:
            assert segment.start == span.start + done - span.past
            assert self.states[segment.source] == beginnings[done]
            assert pool.holders[segment.target] == 1
            assert pool.keys[segment.target] is None
            done += segment.count
            self.states[segment.target] = beginnings[done]
        assert not self.kv.states.used or done == span.length

    def check(self, sequence: Sequence) -> None:
        """All that the next token looks back to is there."""
        beginnings = hashes(sequence.tokens)
        if self.kv.states.used:
            assert self.states[sequence.states.now] == beginnings[-1]
        for group, (pages, layers) in enumerate(zip(sequence.pages, self.kv.layout.groups, strict=True)):
            for position in range(layers.first(len(sequence)), len(sequence)):
                row = self.rows[group][pages[position // PAGE]][position % PAGE]
                assert row == beginnings[position + 1]


ACTIONS = "open append append append truncate shift copy close fail save restore clear"


def make_room(kv: KVCache, rng: random.Random, model: dict[Sequence, list[int]]) -> None:
    """Close some sequences: another has the room then that was foretold."""
    others = [s for s in model if rng.random() < 0.3]
    kept = next((s for s in model if s not in others), None)
    foretold = kv.room(kept, others), kv.can_step(kept, others)
    for sequence in others:
        kv.close(sequence)
        del model[sequence]
    assert foretold == (kv.room(kept), kv.can_step(kept))


def continued(rng: random.Random, sequence: Sequence, known: list[int]) -> list[int]:
    """Tokens to append: those of a known text where the sequence is its beginning, or any."""
    count = rng.randrange(1, 150)
    is_beginning = known[: len(sequence)] == sequence.tokens and len(known) > len(sequence)
    return known[len(sequence) :][:count] if is_beginning else [rng.randrange(99) for _ in range(count)]


def shifted(kv: KVCache, rng: random.Random, sequence: Sequence) -> list[int]:
    """Drop tokens out of the middle: what is left of the text before them; the rest of it has to be appended."""
    first = rng.randint(0, len(sequence))
    last = rng.randint(first, len(sequence))
    text = sequence.tokens[:first] + sequence.tokens[last:]
    left = kv.truncate(sequence, sequence.common_prefix(text))
    return text[left:]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [cache, windowed, recurrent])
def test_random_use(make: type[KVCache], seed: int, tmp_path: Path) -> None:
    """Against plain lists and a memory: nothing leaks, nothing shared is written, and what is held is what was put."""
    rng = random.Random(seed)
    kv = make(1000)
    memory, model, texts = Memory(kv), dict[Sequence, list[int]](), dict[str, list[int]]()
    beginnings = [[rng.randrange(99) for _ in range(400)] for _ in range(3)]
    for _ in range(600):
        action = rng.choice(ACTIONS.split())
        sequence = rng.choice(list(model)) if model else None
        if action == "open" and len(model) < 6:
            text = rng.choice(beginnings)[: rng.randrange(1, 400)]
            sequence = kv.open()
            found = kv.reuse(sequence, text)
            assert found.count <= max(0, len(text) - 1)
            model[sequence] = text[: found.count]
        elif action == "clear" and rng.random() < 0.2:
            make_room(kv, rng, model)
        elif sequence is not None and action in {"append", "fail", "shift"}:
            new = continued(rng, sequence, rng.choice(beginnings))
            if action == "shift":
                new = shifted(kv, rng, sequence)
                model[sequence] = list(sequence.tokens)
            can_grow = kv.can_grow({sequence: len(sequence) + len(new)}, len(new))
            try:
                batch = kv.append((sequence, new), outputs=[])
            except RequestError:
                assert model[sequence] == sequence.tokens
                assert not can_grow or len(sequence) + len(new) > kv.n_ctx
            else:
                memory.run(batch, [[*model[sequence], *new]])
                if action == "fail":
                    kv.undo(sequence, len(model[sequence]))
                else:
                    model[sequence] = model[sequence] + new
        elif sequence is not None and action == "truncate":
            length = rng.randint(0, len(sequence))
            left = kv.truncate(sequence, length)
            assert left in {0, length} or (kv.states.used and left < length and left % PAGE == 0)
            model[sequence] = model[sequence][:left]
        elif sequence is not None and action == "copy" and len(model) < 6:
            model[kv.copy(sequence)] = list(model[sequence])
        elif sequence is not None and action == "save":
            saved.save(tmp_path / "kept", {}, kv, sequence, memory.whole)
            texts["kept"] = list(model[sequence])
        elif action == "restore" and texts and len(model) < 6:
            with suppress(RequestError):  # where there is no room
                sequence = saved.restore(tmp_path / "kept", {}, kv, memory.whole, 99)
                model[sequence] = list(texts["kept"])
        elif sequence is not None and action == "close":
            kv.close(sequence)
            del model[sequence]
        accounts(kv)
        for sequence, tokens in model.items():
            assert sequence.tokens == tokens
            memory.check(sequence)
    assert kv.sequences == list(model)
