"""Which positions attention sees: chunks, on every backend; chosen positions, and values kept with their keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from token_tables import TokenTables

from puna import backends, plan
from puna.cache import KVCache
from puna.graph import Graph, Node, check, make

HEADS, HEADS_KV, SIZE, COUNT, CHUNK, BEST = 6, 2, 16, 150, 40, 20
RNG = np.random.default_rng(5)
WIDTHS = {"q": HEADS * SIZE, "k": HEADS_KV * SIZE, "v": HEADS_KV * SIZE, "iq": 3 * SIZE, "ik": SIZE, "iw": 3}
TABLES = {name: RNG.standard_normal((COUNT, width), np.float32) for name, width in WIDTHS.items()}
TABLES["sinks"] = RNG.standard_normal(HEADS, np.float32) + 1
table = TokenTables(TABLES)


def graph(op: str, *extra: Node, **attrs: Any) -> Graph:
    q, k, v = table("q", HEADS, SIZE), table("k", HEADS_KV, SIZE), table("v", HEADS_KV, SIZE)
    how = {"scale": 0.3, "window": 0, "softcap": 0.0, "alibi": 0.0, **attrs}
    y = make(op, q, make("kv_store", k, v, layer=0), *extra, **how)
    return output(y)


def output(y: Node) -> Graph:
    return Graph(make("select", make("reshape", y, shape=("T", HEADS * SIZE))))


def best() -> Node:
    keys = table("ik", 1, SIZE)
    kv = make("kv_store", keys, make("slice", keys, start=0, size=SIZE), layer=1)
    return make("index", table("iq", 3, SIZE), table("iw", 3), kv, k=BEST)


def layout(g: Graph, share: bool = False) -> plan.KVLayout:
    return plan.KVLayout.of(g, 192, "F32", "F32", share=share)


def run(name: str, g: Graph, chunks: Iterable[int], share: bool = False) -> np.ndarray:
    check(g)
    backend, kv = backends.create(name, 1), layout(g, share)
    about, width = backend.describe(), g.output.type.shape[1]
    steps = plan.make_plan(g, tokens=192, rows=192, kv=kv, scratch=backend.scratch, row_ops=about.row_ops)
    program = backend.compile(steps, backend.upload(g, table, None))
    cache, out, at = KVCache(kv, 192), np.empty((COUNT, width), np.float32), 0
    sequence = cache.open()
    for count in chunks:
        batch = cache.append((sequence, range(at, at + count)), outputs=range(count))
        backend.run(program, batch, out[at : at + count])
        at += count
    return out


def definition(seen: np.ndarray, sinks: bool = False) -> np.ndarray:
    """seen: bool [COUNT, COUNT], which keys each query may look at."""
    q, k, v = (TABLES[n].astype(np.float64).reshape(COUNT, -1, SIZE) for n in "qkv")
    scores = 0.3 * np.einsum("thd,shd->hts", q, np.repeat(k, HEADS // HEADS_KV, axis=1))
    weights = np.exp(np.where(seen & np.tri(COUNT, dtype=bool), scores, -np.inf))
    total = weights.sum(-1) + (np.exp(TABLES["sinks"].astype(np.float64))[:, None] if sinks else 0.0)
    mixed = np.einsum("hts,shd->thd", weights, np.repeat(v, HEADS // HEADS_KV, axis=1)) / total.T[..., None]
    return mixed.reshape(COUNT, -1)


def chosen() -> np.ndarray:
    """The best positions of each query by the indexer's formula."""
    q, k, w = TABLES["iq"].reshape(COUNT, 3, SIZE), TABLES["ik"], TABLES["iw"]
    scores = np.einsum("th,ths->ts", w, np.maximum(np.einsum("thd,sd->ths", q, k), 0)).astype(np.float64)
    scores = np.where(np.tri(COUNT, dtype=bool), scores, -np.inf)
    seen = np.zeros((COUNT, COUNT), bool)
    np.put_along_axis(seen, np.argsort(-scores, axis=-1, kind="stable")[:, :BEST], True, axis=-1)
    return seen


STEPS = ([COUNT], [100, *[1] * 50], [33] * 4 + [18])


@pytest.mark.parametrize("chunks", STEPS)
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_chunks(name: str, chunks: list[int]) -> None:
    """A query sees the positions of its own chunk, up to itself, whatever the steps."""
    part = np.arange(COUNT) // CHUNK
    got = run(name, graph("attend", window=CHUNK, chunked=True), chunks)
    np.testing.assert_allclose(got, definition(part[:, None] == part), atol=1e-5)


@pytest.mark.parametrize("chunks", STEPS)
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_chosen_positions(name: str, sinks: bool, chunks: list[int]) -> None:
    """A query sees the positions that the indexer scores highest, of which there are fewer at first."""
    extra = (table("sinks"),) if sinks else ()
    got = run(name, graph("attend_chosen", best(), *extra), chunks)
    np.testing.assert_allclose(got, definition(chosen(), sinks), atol=1e-5)


@pytest.mark.parametrize("chunks", STEPS)
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_values_that_keys_begin_with(name: str, chunks: list[int]) -> None:
    """They take no memory of their own, and attention gives the same."""
    keys = table("ik", 1, SIZE)
    kv = make("kv_store", keys, make("slice", keys, start=0, size=12), layer=0)
    y = make("attend", table("q", HEADS, SIZE), kv, scale=0.3, window=0, softcap=0.0, alibi=0.0)
    g = Graph(make("select", make("reshape", y, shape=("T", HEADS * 12))))
    kept, apart = layout(g, share=True), layout(g)
    assert (kept.row_bytes(0), apart.row_bytes(0)) == ((4 * SIZE, 0), (4 * SIZE, 4 * 12))
    got = [run(name, g, chunks, share) for share in (True, False)]
    if name == "reference":
        np.testing.assert_array_equal(*got)
    np.testing.assert_allclose(*got, atol=1e-6)


def test_values_of_their_own() -> None:
    """Keys and values from two tables, or the end of a key, are stored apart."""
    keys = table("ik", 1, SIZE)
    end = make("kv_store", keys, make("slice", keys, start=4, size=12), layer=0)
    y = make("attend", table("q", HEADS, SIZE), end, scale=0.3, window=0, softcap=0.0, alibi=0.0)
    g = Graph(make("select", make("reshape", y, shape=("T", HEADS * 12))))
    assert layout(g, share=True).shared == frozenset()
    assert layout(graph("attend"), share=True).shared == frozenset()
