"""Operations that write keys and values to the cache, and that attend to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from puna.graph.node import Type
from puna.graph.op import Attrs, Op, need

__all__ = ["ATTENTION"]


def kv_store(types: Sequence[Type], attrs: Attrs) -> Type:
    k, v = types
    need(len(k.shape) == len(v.shape) == 3 and k.shape[:2] == v.shape[:2], f"{k} and {v} do not pair")
    return Type("kv", (k.shape[1], k.shape[2], v.shape[2]))


def attend(types: Sequence[Type], attrs: Attrs) -> Type:
    q, kv = types[:2]
    heads, kv_heads = cast(int, q.shape[1]), cast(int, kv.shape[0])
    need(kv.dtype == "kv" and q.shape[2] == kv.shape[1], f"{q} does not fit {kv}")
    need(heads % kv_heads == 0, f"{heads} heads do not share {kv_heads} key/value heads evenly")
    need(len(types) < 3 or types[2].shape[-1] == heads, "wants one sink a head, or one bias of each bucket")
    return Type("f32", (q.shape[0], heads, kv.shape[2]))


def index(types: Sequence[Type], attrs: Attrs) -> Type:
    q, w, kv = types
    need(kv.dtype == "kv" and kv.shape[0] == 1 and q.shape[2] == kv.shape[1], f"{q} does not fit {kv}")
    need(w.shape == q.shape[:2] and cast(int, attrs["k"]) > 0, f"{w} does not fit {q}")
    return Type("i32", (q.shape[0], cast(int, attrs["k"])))


def index_blocks(types: Sequence[Type], attrs: Attrs) -> Type:
    q, kv = types
    k, size, local = (cast(int, attrs[name]) for name in ("k", "size", "local"))
    need(kv.dtype == "kv" and kv.shape[0] == 1 and q.shape[2] == kv.shape[1], f"{q} does not fit {kv}")
    need(
        k > 0 and size > 1 and 0 <= local <= k,
        f"cannot choose {k} blocks of {size}, {local} of them the last",
    )
    return Type("i32", (q.shape[0], k * size))


def attend_chosen(types: Sequence[Type], attrs: Attrs) -> Type:
    q, kv, chosen, *sinks = types
    need(
        chosen.dtype == "i32" and chosen.shape[0] == q.shape[0] and len(chosen.shape) == 2,
        f"{chosen} are no positions",
    )
    return attend([q, kv, *sinks], attrs)


def attend_both(types: Sequence[Type], attrs: Attrs) -> Type:
    q, kv, pooled, sinks, *chosen = types
    need(kv == pooled and kv.shape[0] == 1, f"{kv} and {pooled} do not pair")
    return attend_chosen([q, kv, *chosen, sinks], attrs) if chosen else attend([q, kv, sinks], attrs)


ATTENTION: Mapping[str, Op] = {
    "kv_store": Op(
        ("k", "v"),
        ("layer", "every?", "part?"),
        kv_store,
        "append this step's keys and values to the cache of a layer; or of each `every` positions those of the last, "
        "and what reads them counts such blocks in place of positions; `part` is whose they are where a text is "
        "encoded before others are decoded: the encoder's, those of its results (memory) or the decoder's",
    ),
    "attend": Op(
        ("q", "kv", "sinks or biases?"),
        ("scale", "window", "softcap", "alibi", "chunked?", "causal?"),
        attend,
        "causal attention over the cached keys; a sink is a score of its head without a value; biases are added to "
        "scores by distance; a query sees `window` positions, or those from the last multiple of it on where chunked; "
        "where not causal those after it too, or `window // 2` to either side; of memory all, of a decoder its own",
    ),
    "index": Op(
        ("q", "w", "kv"),
        ("k",),
        index,
        "positions of the k keys so far of largest sum over h of w[h] * relu(q[h] . key), in any order; -1 where there "
        "are fewer",
    ),
    "index_blocks": Op(
        ("q", "kv"),
        ("k", "size", "local"),
        index_blocks,
        "positions so far of k blocks of `size` of them: the last `local` blocks, then those of the largest q[h] . key "
        "of any head and position; -1 where there are fewer",
    ),
    "attend_chosen": Op(
        ("q", "kv", "chosen", "sinks?"),
        ("scale", "window", "softcap", "alibi"),
        attend_chosen,
        "attend, over the chosen positions alone",
    ),
    "attend_both": Op(
        ("q", "kv", "pooled", "sinks", "chosen?"),
        ("scale", "window"),
        attend_both,
        "attend, over the window of one cache and all, or the chosen, blocks so far of another, weighed together",
    ),
}
