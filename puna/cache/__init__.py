"""KV memory and the sequences that own it."""

from __future__ import annotations

from puna.cache.kv import KVCache, NoRoomError, Sequence
from puna.cache.report import CacheReport

__all__ = ["CacheReport", "KVCache", "NoRoomError", "Sequence"]
