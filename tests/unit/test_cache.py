"""Pages and the sequences that own them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from puna.cache import KVCache, Sequence
from puna.errors import RequestError
from puna.plan import KVLayout


def cache(n_ctx: int = 300) -> KVCache:
    return KVCache(KVLayout({0: (1, 4, 4)}, "F32", "F32", -(-n_ctx // 64)), n_ctx)


def test_append_describes_the_step() -> None:
    """A batch of two sequences gives each row its position and each span its pages."""
    kv = cache()
    a, b = kv.open(), kv.open()
    kv.append((a, range(70)), outputs=[69])
    batch = kv.append((a, [7, 8]), (b, [9]), outputs=[1, 2])
    assert batch.tokens.tolist() == [7, 8, 9]
    assert batch.positions.tolist() == [70, 71, 0]
    assert [(s.start, s.count, s.past, s.length, len(s.pages)) for s in batch.spans] == [
        (0, 2, 70, 72, 2),
        (2, 1, 0, 1, 1),
    ]
    assert set(a.pages).isdisjoint(b.pages)
    assert batch.outputs.dtype == np.int32


def test_overflow_changes_nothing() -> None:
    """A step that does not fit names both numbers and leaves the cache as it was."""
    kv = cache(100)
    a = kv.open()
    kv.append((a, range(90)), outputs=[])
    with pytest.raises(RequestError, match="101 tokens do not fit the context of 100"):
        kv.append((a, range(11)), outputs=[])
    assert len(a) == 90
    assert kv.room(a) == 100
    kv.append((a, range(10)), outputs=[])


def test_truncate_bounds() -> None:
    """A sequence can only be cut to a length it has."""
    kv = cache()
    a = kv.open()
    kv.append((a, range(5)), outputs=[])
    for length in (-1, 6):
        with pytest.raises(RequestError, match="cannot truncate"):
            kv.truncate(a, length)


def test_common_prefix() -> None:
    """The shared beginning of a sequence and new ids is counted, whichever is longer."""
    a = Sequence()
    a.tokens = [1, 2, 3]
    assert [a.common_prefix(ids) for ids in ([], [1, 2], [1, 2, 3, 4], [1, 9, 3], [5])] == [0, 2, 3, 1, 0]


def test_random_use_leaks_no_page() -> None:
    """Against a plain list model: every page has one owner or is free, and lengths and tokens agree."""
    rng = random.Random(1)
    kv, model = cache(1000), {}
    for _ in range(2000):
        action = rng.choice(["open", "append", "append", "truncate", "close"])
        if action == "open" and len(model) < 6:
            model[kv.open()] = []
        elif action != "open" and model:
            sequence = rng.choice(list(model))
            if action == "append":
                new = [rng.randrange(99) for _ in range(rng.randrange(1, 200))]
                try:
                    kv.append((sequence, new), outputs=[])
                    model[sequence] = model[sequence] + new
                except RequestError:
                    assert sum(map(len, model.values())) + len(new) > 1000 or len(new) > 64 * len(kv.free)
            elif action == "truncate":
                length = rng.randint(0, len(sequence))
                kv.truncate(sequence, length)
                model[sequence] = model[sequence][:length]
            else:
                kv.close(sequence)
                del model[sequence]
        owned = [page for sequence in model for page in sequence.pages]
        assert sorted(owned + kv.free) == list(range(kv.layout.pages))
        assert all(sequence.tokens == tokens for sequence, tokens in model.items())
    assert kv.sequences == list(model)
