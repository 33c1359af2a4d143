"""What must hold of a cache at any time."""

from __future__ import annotations

from collections import Counter

import puna
from puna.cache import KVCache
from puna.cache.kv import GONE
from puna.cache.states import EMPTY

__all__ = ["accounts", "nothing_held"]


def accounts(kv: KVCache) -> None:
    """Every page is free, idle or held, by as many as say so."""
    for group, pool in enumerate(kv.pools):
        holders = Counter(page for s in kv.sequences for page in s.pages[group] if page != GONE)
        assert [holders[page] for page in range(pool.count)] == pool.holders
        assert sorted([*pool.free, *pool.idle, *holders]) == list(range(pool.count))
        assert all(pool.keys[page] == key for key, page in pool.known.items())
    pool = kv.states.pool
    holders = Counter([EMPTY, *(slot for s in kv.sequences for slot in s.states.slots)])
    assert [holders[slot] for slot in range(pool.count)] == pool.holders
    assert sorted([*pool.free, *pool.idle, *holders]) == list(range(pool.count))


def nothing_held(model: puna.Model) -> None:
    """All pages have come back."""
    accounts(model.cache)
    assert model.cache.sequences == []
    assert all(pool.room == pool.count for pool in model.cache.pools)
