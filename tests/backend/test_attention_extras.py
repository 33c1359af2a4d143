"""ALiBi and attention sinks, which no model here uses yet, on every backend against their definition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from puna import backends, plan
from puna.cache import KVCache
from puna.graph import Graph, check, make, slopes

HEADS, HEADS_KV, SIZE, COUNT = 6, 2, 16, 150
RNG = np.random.default_rng(4)
TABLES = {
    "q": RNG.standard_normal((COUNT, HEADS * SIZE), np.float32),
    "k": RNG.standard_normal((COUNT, HEADS_KV * SIZE), np.float32),
    "v": RNG.standard_normal((COUNT, HEADS_KV * SIZE), np.float32),
    "sinks": RNG.standard_normal(HEADS, np.float32) + 1,
}


class Source:
    """Stands for an open file: the tables above."""

    def data(self, name: str) -> np.ndarray:
        return TABLES[name].view(np.uint8)

    def drop(self, name: str, start: int, stop: int) -> None:
        pass


def graph(alibi: float, sinks: bool) -> Graph:
    """Token t brings query, key and value t of the tables."""

    def table(name: str) -> Any:
        return make("weight", tensor=name, dtype="F32", shape=TABLES[name].shape)

    q, k, v = (
        make("reshape", make("embed", table(n), make("tokens")), shape=("T", heads, SIZE))
        for n, heads in (("q", HEADS), ("k", HEADS_KV), ("v", HEADS_KV))
    )
    kv = make("kv_store", k, v, layer=0)
    extra = (table("sinks"),) if sinks else ()
    y = make("attend", q, kv, *extra, scale=0.3, window=0, softcap=0.0, alibi=alibi)
    return Graph(make("select", make("reshape", y, shape=("T", HEADS * SIZE))))


def definition(alibi: float, sinks: bool) -> np.ndarray:
    q, k, v = (TABLES[n].astype(np.float64).reshape(COUNT, -1, SIZE) for n in "qkv")
    out = np.empty((COUNT, HEADS, SIZE))
    for t in range(COUNT):
        for h in range(HEADS):
            scores = 0.3 * k[: t + 1, h // 3] @ q[t, h]
            if alibi:
                scores += slopes(HEADS, alibi)[h] * (np.arange(t + 1) - t)
            weights = np.exp(scores)
            total = weights.sum() + (np.exp(float(TABLES["sinks"][h])) if sinks else 0.0)
            out[t, h] = weights @ v[: t + 1, h // 3] / total
    return out.reshape(COUNT, -1)


def run(name: str, g: Graph, chunks: Iterable[int]) -> np.ndarray:
    backend = backends.create(name)
    kv = plan.KVLayout.of(g, 192, "F32", "F32")
    about = backend.describe()
    steps = plan.make_plan(g, tokens=192, rows=192, kv=kv, scratch=backend.scratch, row_ops=about.row_ops)
    program = backend.compile(steps, backend.upload(g, Source(), None))
    cache, out, at = KVCache(kv, 192), np.empty((COUNT, HEADS * SIZE), np.float32), 0
    sequence = cache.open()
    for count in chunks:
        batch = cache.append((sequence, range(at, at + count)), outputs=range(count))
        backend.run(program, batch, out[at : at + count])
        at += count
    return out


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize(("alibi", "sinks"), [(8.0, False), (0.0, True), (8.0, True), (0.0, False)])
def test_biases_and_sinks(name: str, alibi: float, sinks: bool) -> None:
    """Biases by distance and sinks give what their formulas say, in one step and token by token."""
    g = graph(alibi, sinks)
    check(g)
    want = definition(alibi, sinks)
    whole, single = run(name, g, [COUNT]), run(name, g, [100, *[1] * 50])
    np.testing.assert_allclose(whole, want, atol=1e-5)
    np.testing.assert_allclose(single, want, atol=1e-5)
    if name == "cpu":
        np.testing.assert_array_equal(whole, single)


def test_slopes_of_the_paper() -> None:
    """Eight heads: 1/2, 1/4, ..., 1/256; twelve heads: those, and odd powers of 2 ** -0.5 for the other four."""
    assert slopes(8, 8.0) == pytest.approx([2.0**-n for n in range(1, 9)])
    assert slopes(12, 8.0) == pytest.approx(
        [2.0**-n for n in range(1, 9)] + [2.0 ** -(n / 2) for n in (1, 3, 5, 7)]
    )
