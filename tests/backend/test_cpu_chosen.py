"""Chosen positions on the CPU, and keys by rows that begin with their values: beside the reference, and bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_cpu_rig import Guarded, run
from token_tables import TokenTables

from puna import backends, plan
from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.index import Choice, index, index_scratch, index_split
from puna.backends.cpu.kernels.shapes import ITEM_BYTES
from puna.cache import KVCache
from puna.graph import Graph, Node, make

PAGE, COUNT, HEADS, KEY, VALUE, BEST = 64, 600, 16, 96, 64, 70
RNG = np.random.default_rng(5)
WIDTHS = {"q": HEADS * KEY, "k": KEY, "iq": 4 * 32, "ik": 32, "iw": 4}
TABLES = {name: RNG.standard_normal((COUNT, width), np.float32) for name, width in WIDTHS.items()}
Steps = Sequence[Sequence[tuple[int, int]]]  # of each step: sequences, and how many tokens of them
table = TokenTables(TABLES)


def first(x: Node, size: int) -> Node:
    return make("slice", x, start=0, size=size)


def graph(*, chosen: str = "index", value: int = VALUE, window: int = 0) -> Graph:
    """Attention of many heads to keys that begin with their values; all positions, or the best by an indexer.

    chosen: the operation, or none.
    """
    keys, own = table("k", 1, KEY), table("ik", 1, 32)
    kv = make("kv_store", keys, first(keys, value), layer=0)
    how = {"scale": 0.1, "window": window, "softcap": 0.0, "alibi": 0.0}
    if chosen:
        small = make("kv_store", own, first(own, 32), layer=1)
        if chosen == "index":
            best = make("index", table("iq", 4, 32), table("iw", 4), small, k=BEST)
        else:
            best = make("index_blocks", table("iq", 4, 32), small, k=9, size=8, local=1)
        y = make("attend_chosen", table("q", HEADS, KEY), kv, best, **how)
    else:
        y = make("attend", table("q", HEADS, KEY), kv, **how)
    return Graph(make("select", make("reshape", y, shape=("T", HEADS * value))))


WHOLE: Steps = [[(0, COUNT)]]


def computed(
    name: str, g: Graph, kind: str = "F32", *, steps: Steps = WHOLE, threads: int = 1, share: bool = True
) -> list[np.ndarray]:
    """What each of some sequences gives; the first has the tokens in order, others from another on, and round."""
    backend = backends.create(name, threads)
    kv = plan.KVLayout.of(g, 1280, kind, kind, parallel=2, share=share)
    about = backend.describe()
    how: dict[str, Any] = {"kv": kv, "scratch": backend.scratch, "row_ops": about.row_ops}
    program_plan = plan.make_plan(g, tokens=1280, rows=1280, **how)
    program = backend.compile(program_plan, backend.upload(g, table, None))
    cache = KVCache(kv, 1280)
    sequences = [cache.open() for _ in range(1 + max(n for step in steps for n, _ in step))]
    found: list[list[np.ndarray]] = [[] for _ in sequences]
    for step in steps:
        parts, rows = [], 0
        for n, count in step:
            start = len(sequences[n]) + 100 * n
            parts.append((sequences[n], [t % COUNT for t in range(start, start + count)]))
            rows += count
        out = np.empty((rows, g.output.type.shape[1]), np.float32)
        backend.run(program, cache.append(*parts, outputs=range(rows)), out)
        for n, count in step:
            found[n].append(out[:count])
            out = out[count:]
    return [np.concatenate(each) for each in found]


@pytest.mark.parametrize(
    ("kind", "op"), [("F32", "index"), ("F32", "index_blocks"), ("BF16", "index"), ("Q8_0", "index")]
)
def test_chosen_positions_by_type(kind: str, op: str) -> None:
    """Attention to chosen positions is the reference backend's, with keys and values of any type, turned or not."""
    g = graph(chosen=op)
    g = plan.rotate_keys(g) if kind == "Q8_0" else g
    got, want = (computed(name, g, kind)[0] for name in ("cpu", "reference"))
    if kind == "F32":
        assert np.abs(got - want).max() <= 1e-5
    else:  # a value halfway between two codes may be rounded to either, and a choice turn out otherwise
        assert np.mean((got - want) ** 2) <= 1e-4 * np.mean(want**2)


def test_no_bit_depends_on_steps_threads_or_neighbours() -> None:
    """One step, chunks, and single tokens over a long past, beside another text or not, on one thread or three."""
    (want,) = computed("cpu", graph())
    steps = [[(0, 5), (1, 530)], [(0, 530), (1, 1)], *[[(0, 1)]] * 20, *[[(1, 1), (0, 1)]] * 45]
    (one, one_beside), (three, three_beside) = (
        computed("cpu", graph(), steps=steps, threads=threads) for threads in (1, 3)
    )
    for got, bits in ((one, want), (three, want), (three_beside, one_beside)):
        np.testing.assert_array_equal(got.view(np.uint32), bits.view(np.uint32))


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q5_1", "IQ4_NL"])
def test_values_that_keys_begin_with(kind: str) -> None:
    """They take no memory of their own and give the same, whatever the type."""
    g = graph(chosen="")
    apart = plan.KVLayout.of(g, COUNT, kind, kind)
    kept = plan.KVLayout.of(g, COUNT, kind, kind, share=True)
    assert kept.nbytes * (KEY + VALUE) == apart.nbytes * KEY
    (want,), (got,) = (computed("cpu", g, kind, share=share) for share in (False, True))
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("window", [0, 530])
def test_a_long_past_by_rows(window: int) -> None:
    """Several threads that share out a past whose keys hold their values give the bits of one."""
    g = graph(chosen="", window=window)
    (want,) = computed("cpu", g, "F16")
    (got,) = computed("cpu", g, "F16", steps=[[(0, 560)], *[[(0, 1)]] * 40], threads=2)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize(("value", "shared"), [(64, True), (48, False)])
def test_turned_values_are_turned_back(value: int, shared: bool) -> None:
    """Keys and the values in them are turned together where that is possible; attention gives what it gave."""
    g = graph(chosen="", value=value)
    turned = plan.rotate_keys(g)
    assert plan.KVLayout.of(turned, COUNT, "F32", "F32", share=True).shared == frozenset(
        {0} if shared else ()
    )
    (want,), (got,) = (computed("reference", each) for each in (g, turned))
    np.testing.assert_allclose(got, want, atol=1e-5)


class Chosen:
    """A text's indexer keys in pages in any order, for the kernels, that make scores of one sign twice as large."""

    def __init__(self, scores: np.ndarray, best: int, count: int, block: int = 1, local: int = 0) -> None:
        """scores [positions]: of all rows; the last `count` positions are rows of the step."""
        self.positions, self.count = len(scores), count
        pages = RNG.permutation(-(-self.positions // PAGE) + 3)[: -(-self.positions // PAGE)].astype(np.int32)
        self.pages, self.choice = pages, Choice(2, 4, "F32", best, block=block, local=local)
        keys = np.full((len(pages) + 3, 4, PAGE), np.nan, np.float32)
        for position, score in enumerate(scores):
            keys[pages[position // PAGE], :, position % PAGE] = abs(score), 0, 0, 0
        self.keys = keys
        self.q = np.tile(np.array([[1, 0, 0, 0], [2, 0, 0, 0]], np.float32), (count, 1, 1))
        self.w = np.tile(np.array([1, 0.5], np.float32) * (-1 if (scores < 0).any() else 1), (count, 1))

    def answer(self, *, most: int = 8, split: bool = False) -> np.ndarray:
        """The chosen of each row, i32 [count, length]."""
        best, past = self.choice.length, self.positions - self.count
        out, scratch = Guarded(self.count * best * 4), index_scratch(2, len(self.pages) * PAGE)
        items = np.zeros((self.count, ITEM_BYTES // 8), np.int64)
        rows = range(0, self.count, most)
        for n, row in enumerate(rows):
            size = min(most, self.count - row)
            items[n, :5] = row, size, past + row, self.pages.ctypes.data, self.positions
        blocks, width = -(-len(self.pages) // 8), len(self.pages) * PAGE * 4
        scores, counters = Guarded(len(rows) * width), np.zeros(len(rows), np.int64)
        args = [self.q.ctypes.data, 32, out.address, best * 4, self.keys.ctypes.data, self.w.ctypes.data]
        args += [items.ctypes.data, scores.address, blocks, counters.ctypes.data, 8, width]
        if split:
            for unit in RNG.permutation(len(rows) * blocks):
                run(Spec.of(index_split, choice=self.choice, tile=2), args, int(unit), int(unit) + 1, scratch)
        else:
            run(Spec.of(index, choice=self.choice, tile=2), args, 0, len(rows), scratch)
        assert out.is_intact
        assert scores.is_intact
        assert not counters.any(), "a counter is not ready for its next use"
        return out.view(np.int32, self.count, best).copy()


def wanted(scores: np.ndarray, best: int, count: int) -> np.ndarray:
    """By sorting: the largest scores of each row's past, ties from the first on; ascending, then -1."""
    out = np.full((count, best), -1, np.int32)
    for row in range(count):
        seen = len(scores) - count + row + 1
        found = np.sort(np.argsort(-scores[:seen], kind="stable")[:best])
        out[row, : len(found)] = found
    return out


@pytest.mark.parametrize(("best", "sign"), [(1, 1), (7, -1), (64, 1), (650, -1)])
def test_the_best_are_chosen(best: int, sign: int) -> None:
    """Those of the largest scores, of equal ones the first, as a stable sort has them, in items, rows or blocks."""
    scores = sign * RNG.integers(0, 40, 700).astype(np.float32) * (RNG.random(700) < 0.7)
    problem = Chosen(scores, best, 90)
    got = problem.answer()
    np.testing.assert_array_equal(got, wanted(scores, best, 90))
    np.testing.assert_array_equal(problem.answer(most=1, split=True), got)


@pytest.mark.parametrize(("best", "size", "local"), [(3, 4, 1), (5, 7, 0), (2, 64, 2), (99, 7, 1)])
def test_the_best_blocks_are_chosen(best: int, size: int, local: int) -> None:
    """Whole blocks of positions, by the largest score in each, but the last always, as a stable sort has them."""
    scores = RNG.integers(0, 1000, 700).astype(np.float32)
    problem = Chosen(scores, best, 90, block=size, local=local)
    got = problem.answer()
    for row, chosen in enumerate(got):
        seen = 700 - 90 + row + 1
        blocks = [scores[i : min(i + size, seen)].max() for i in range(0, seen, size)]
        blocks[len(blocks) - local :] = [np.inf] * local
        found = np.argsort(-np.array(blocks), kind="stable")[:best]
        assert chosen[chosen >= 0].tolist() == [p for p in range(seen) if p // size in found]
    np.testing.assert_array_equal(problem.answer(most=1, split=True), got)


def test_scores_that_are_not_numbers() -> None:
    """NaN is worse than anything, infinity better; equal scores are taken from the first on."""
    scores = np.zeros(100, np.float32)
    scores[[3, 40, 70]], scores[[60, 90]] = np.nan, np.inf
    got = Chosen(scores, 5, 1).answer()[0]
    np.testing.assert_array_equal(got, [0, 1, 2, 60, 90])
    np.testing.assert_array_equal(Chosen(scores, 98, 1).answer()[0], sorted({*range(100)} - {40, 70}))
