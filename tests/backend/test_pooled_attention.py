"""Attention to a window and to blocks of positions, on every backend, however a text is cut into steps."""

from __future__ import annotations

import numpy as np
import pytest
from test_seen_positions import BEST, COUNT, HEADS, SIZE, STEPS, TABLES, layout, output, run, table

from puna.graph import Graph, Node, SpecError, make

EVERY, WINDOW = 4, 40


def stored(name: str, layer: int, **attrs: int) -> Node:
    keys = table(name, 1, SIZE)
    return make("kv_store", keys, make("slice", keys, start=0, size=SIZE), layer=layer, **attrs)


def graph(every: int, choose: bool) -> Graph:
    """Blocks have the keys of the indexer of `test_seen_positions`, as the window has."""
    blocks, extra = stored("ik", 1, every=every), []
    if choose:
        extra = [make("index", table("iq", 3, SIZE), table("iw", 3), stored("ik", 2, every=every), k=BEST)]
    parts = table("q", HEADS, SIZE), stored("ik", 0), blocks, table("sinks")
    return output(make("attend_both", *parts, *extra, scale=0.3, window=WINDOW))


def definition(every: int, choose: bool) -> np.ndarray:
    tables = {name: value.astype(np.float64) for name, value in TABLES.items()}
    keys, out = tables["ik"], np.empty((COUNT, HEADS * SIZE))
    for t in range(COUNT):
        ends = np.arange(every - 1, t + 1, every)
        if choose:
            scores = tables["iw"][t] @ np.maximum(tables["iq"][t].reshape(3, SIZE) @ keys[ends].T, 0)
            ends = ends[np.argsort(-scores, kind="stable")[:BEST]]
        seen = keys[[*range(max(0, t + 1 - WINDOW), t + 1), *ends]]
        weights = np.exp(0.3 * tables["q"][t].reshape(HEADS, SIZE) @ seen.T)
        total = weights.sum(axis=-1, keepdims=True) + np.exp(tables["sinks"])[:, None]
        out[t] = (weights / total @ seen).reshape(-1)
    return out


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(("every", "choose"), [(EVERY, False), (EVERY, True), (128, False)])
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_both_caches(name: str, every: int, choose: bool, share: bool) -> None:
    """A query sees its window and the blocks that have ended, or the best of them, under one softmax with a sink."""
    want = definition(every, choose)
    found = [run(name, graph(every, choose), chunks, share) for chunks in STEPS]
    for got in found:
        np.testing.assert_allclose(got, want, atol=1e-5)
        assert name != "cpu" or (got == found[0]).all()


def test_a_row_for_each_block() -> None:
    """A cache of blocks has so many rows less in a page, but one at least, and does not follow the window."""
    for every, rows in ((4, 16), (128, 1)):
        kv = layout(graph(every, False), share=True)
        assert [kv.rows(layer) for layer in (0, 1)] == [64, rows]
        assert [group.window for group in kv.groups] == [0, WINDOW]
        assert kv.page_bytes(1) == rows * SIZE * 4
        assert kv.layer_bytes(1) == kv.page_bytes(1) * kv.pages(1)


def test_blocks_that_do_not_pair() -> None:
    """Both caches have one head of one size."""
    parts = table("q", HEADS, SIZE), stored("ik", 0)
    with pytest.raises(SpecError, match="do not pair"):
        make(
            "attend_both",
            *parts,
            make("kv_store", *[table("q", 1, SIZE * HEADS)] * 2, layer=1),
            table("sinks"),
            scale=1.0,
            window=1,
        )
