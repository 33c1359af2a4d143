"""KV memory and the sequences that own it."""

from __future__ import annotations

from puna.cache.kv import KVCache, NoRoomError, Sequence

__all__ = ["KVCache", "NoRoomError", "Sequence"]
