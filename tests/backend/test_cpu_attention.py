"""Attention against the reference backend's in float64: head sizes, groups, windows, caches, pages in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from test_cpu_rig import Guarded, run

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.attention import attend, attend_split
from puna.backends.cpu.kernels.shapes import BLOCK, ITEM_BYTES, Shape, attend_scratch, parts_bytes
from puna.backends.reference.attention import attend_block, unseen
from puna.graph import biases, slopes
from puna.plan import KVLayout
from puna.quants import by_name, dequantize, quantize

PAGE = 64
QUERIES = 6  # of the largest tile of any processor
LONG = PAGE * BLOCK  # positions of a block of pages


@dataclass(frozen=True)
class Text:
    """A sequence: the positions it holds already, the rows of it in this step, and its pages."""

    past: int
    count: int
    pages: tuple[int, ...]

    @property
    def border(self) -> int:
        """Where what is decoded begins."""
        return self.past // 2


# A prefill that goes on in the middle of a page and crosses into the next, a new one, and a single token after many.
TEXTS = (Text(60, 11, (7, 2)), Text(0, 9, (5,)), Text(200, 1, (0, 9, 4, 1)))
# The same after texts that are encoded.
ANSWERS = (Text(60, 11, (7, 2)), Text(2, 9, (5,)), Text(200, 1, (0, 9, 4, 1)))


def shape(
    heads_kv: int = 2,
    group: int = 1,
    key: int = 64,
    value: int = 64,
    kinds: str = "F16 F16",
    window: int = 0,
    softcap: float = 0.0,
    **extras: Any,
) -> Shape:
    k_kind, v_kind = kinds.split()
    return Shape(heads_kv, group, key, value, k_kind, v_kind, key**-0.5, window, softcap, **extras)


SHAPES = [
    shape(key=1, value=1, kinds="F32 F32"),
    shape(key=8, value=8, group=3),
    shape(key=40, value=40, group=4, kinds="BF16 BF16"),
    shape(key=64, value=64, group=6, heads_kv=1),
    shape(key=80, value=80, group=1, heads_kv=3),
    shape(key=96, value=96, group=3, kinds="F32 F16", softcap=50.0),
    shape(key=128, value=128, group=4, heads_kv=1),
    shape(key=256, value=256, group=4, heads_kv=1, softcap=20.0, window=40),
    shape(key=192, value=128, group=1),  # as DeepSeek has them
    shape(key=40, value=9, group=6, kinds="F16 F32"),
    shape(key=64, value=1, kinds="BF16 F32"),
    shape(key=8, value=8, group=3, alibi=True),
    shape(key=8, value=8, group=3, sinks=True, window=70),
    *(
        shape(key=8, value=8, group=3, causal=False, alibi=a, window=w)
        for a, w in ((False, 0), (True, 0), (True, 7))
    ),
    *(shape(key=8, value=8, group=2, causal=False, window=window) for window in (1, 64, 131, 1000)),
    *(shape(key=8, value=8, group=2, window=window) for window in (1, 64, 65, 1000)),
    *(shape(key=8, value=8, group=2, biases=True, causal=causal) for causal in (True, False)),
    shape(key=8, value=8, group=2, biases=True, part="decoder"),
    shape(key=8, value=8, group=2, causal=False, part="memory"),
]


class Problem:
    """Queries, keys and values of some texts, and the caches that hold them in the layout of the kernels."""

    def __init__(
        self, shape: Shape, texts: Sequence[Text], pages: int, seed: int, spread: float = 1.0
    ) -> None:
        self.shape, self.texts = shape, texts
        rng = np.random.default_rng(seed)
        self.tokens = sum(text.count for text in texts)
        self.heads = shape.heads_kv * shape.group
        q = spread * rng.standard_normal((self.tokens, self.heads, shape.key))
        self.q = q.astype(np.float32)
        self.slopes = np.array(slopes(self.heads, 8.0), np.float32)
        self.sinks = rng.standard_normal(self.heads).astype(np.float32)
        self.biases = rng.standard_normal((32, self.heads)).astype(np.float32)  # of each bucket
        # What no text holds is as bad as it can be: it must not be looked at.
        self.keys = np.full((pages, shape.heads_kv, shape.key, PAGE), np.nan, np.float32)
        self.values = np.full((pages, shape.heads_kv, PAGE, shape.value), np.nan, np.float32)
        self.past = []
        for text in texts:
            length = text.past + text.count
            k = rng.standard_normal((length, shape.heads_kv, shape.key)).astype(np.float32)
            v = rng.standard_normal((length, shape.heads_kv, shape.value)).astype(np.float32)
            for position in range(length):
                page, place = text.pages[position // PAGE], position % PAGE
                self.keys[page, :, :, place], self.values[page, :, place] = k[position], v[position]
            self.past.append((stored(shape.k_kind, k)[1], stored(shape.v_kind, v)[1]))
        self.k_cache, self.v_cache = stored(shape.k_kind, self.keys)[0], stored(shape.v_kind, self.values)[0]

    def expected(self) -> np.ndarray:
        """The reference backend's softmax(q k) v, in float64, for the values that the caches hold."""
        shape, out, start = self.shape, [], 0
        attrs = {"scale": shape.scale, "window": shape.window, "softcap": shape.softcap}
        attrs |= {"alibi": 8.0 * shape.alibi, "causal": shape.causal}
        more = SimpleNamespace(type=SimpleNamespace(dtype="F32", shape=self.biases.shape))
        node = SimpleNamespace(attrs=attrs, inputs=(None, None, more) if shape.biases else ())
        sinks = self.sinks.astype(np.float64) if shape.sinks else self.biases if shape.biases else None
        for text, (keys, values) in zip(self.texts, self.past, strict=True):
            first, last = self.seen(text)
            k, v = keys[first:last], values[first:last]
            q = self.q[start : start + text.count].astype(np.float64)
            positions = np.arange(text.past, text.past + text.count) - first
            scratch = np.zeros(self.heads * text.count * len(k))
            hidden = unseen(cast(Any, node), positions, len(k))
            out.append(attend_block(cast(Any, node), q, k, v, positions, hidden, scratch, sinks))
            start += text.count
        return np.concatenate(out)

    def seen(self, text: Text) -> tuple[int, int | None]:
        """From where to where a text's keys are seen at all."""
        return {"": (0, None), "decoder": (text.border, None), "memory": (0, text.border)}[self.shape.part]

    def by_distance(self) -> np.ndarray:
        """The slopes or the biases, as the kernel takes them."""
        if not self.shape.biases:
            return self.slopes
        node = SimpleNamespace(attrs={"causal": self.shape.causal})
        return np.pad(biases(cast(Any, node), self.biases), ((0, 0), (16, 15)), mode="edge")

    def items(self, most: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """Each text's rows in runs of at most `most`: first row, rows, position, address of pages, length, border."""
        made, start = [], 0
        pages = [np.array(text.pages, np.int32) for text in self.texts]
        for text, table in zip(self.texts, pages, strict=True):
            for first in range(0, text.count, most):
                count = min(most, text.count - first)
                position, length = text.past + first, text.past + text.count
                made.append((start + first, count, position, table.ctypes.data, length, text.border))
            start += text.count
        items = np.array(made, np.int64)
        assert items.shape[1] * 8 == ITEM_BYTES
        return items, pages

    def solve(self, *, most: int = 8, tile: int = QUERIES, split: bool = False) -> np.ndarray:
        """By the kernel, f32 [T, heads, value]; only the result and the scratch may be written."""
        shape = self.shape
        items, tables = self.items(most)
        out = Guarded(self.tokens * self.heads * shape.value * 4)
        longest = max(len(table) for table in tables)
        blocks = -(-longest // BLOCK)
        # The smallest cache that holds the longest text, and the fewest threads that share out so many units.
        layout = KVLayout.uniform({0: (shape.heads_kv, shape.key, shape.value)}, "F32", "F32", longest * PAGE)
        parts = Guarded(parts_bytes(layout, -(-len(items) * shape.heads_kv // 2)) if split else 0)
        counters = np.zeros(len(items) * shape.heads_kv, np.int64)
        row, distances = self.heads * 4, self.by_distance()
        args = [self.q.ctypes.data, row * shape.key, out.address, row * shape.value]
        args += [self.k_cache.ctypes.data, self.v_cache.ctypes.data, items.ctypes.data]
        args += [parts.address, blocks, counters.ctypes.data, distances.ctypes.data, self.sinks.ctypes.data]
        units, scratch = len(items) * shape.heads_kv, attend_scratch(shape.value, tile)
        if split:
            spec = Spec.of(attend_split, shape=shape, tile=tile)
            # Threads take them in any order.
            for unit in np.random.default_rng(1).permutation(units * blocks):
                run(spec, args, int(unit), int(unit) + 1, scratch)
        else:
            run(Spec.of(attend, shape=shape, tile=tile), args, 0, units, scratch)
        assert out.is_intact
        assert parts.is_intact
        assert not counters.any(), "a counter is not ready for its next use"
        return out.view(np.float32, self.tokens, self.heads, shape.value).copy()


def stored(kind: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values as a cache of this type holds them: its bytes, and what they stand for in float64."""
    flat = values.reshape(len(values), -1)
    raw = quantize(by_name(kind), flat)
    return raw, dequantize(by_name(kind), raw).reshape(values.shape).astype(np.float64)


def off(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, in roundings of a value of 1: values are normal numbers, and results means of them."""
    return float(np.abs(got - want).max() * 2**23)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: " ".join(map(str, astuple(s))))
def test_attention(shape: Shape) -> None:
    """Several texts in one step give the float64 result; each query alone gives the same bits."""
    problem = Problem(shape, ANSWERS if shape.part else TEXTS, 10, seed=shape.key)
    got = problem.solve()
    # What tanh loses, the cap makes larger.
    assert off(got, problem.expected()) <= 24 + 2 * shape.softcap
    alone = problem.solve(most=1, tile=min(QUERIES, shape.group) if shape.key <= 64 else QUERIES)
    np.testing.assert_array_equal(alone.view(np.uint32), got.view(np.uint32))


@pytest.mark.parametrize("most", [2, 3, 64])
def test_rows_are_cut_into_items_freely(most: int) -> None:
    """How many rows of a text are taken together changes no bit."""
    problem = Problem(shape(key=8, value=8, group=3), TEXTS, 10, seed=1)
    np.testing.assert_array_equal(problem.solve(most=most), problem.solve())


def test_order_of_pages_does_not_matter() -> None:
    """The same text in other pages gives the same bits."""
    results = []
    for pages in ((0, 1, 2, 3), (9, 3, 7, 0)):
        problem = Problem(shape(key=8, value=8, group=2), (Text(190, 40, pages),), 10, seed=2)
        results.append(problem.solve())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("window", "group", "part"),
    [(0, 1, ""), (0, 16, ""), (100, 3, ""), (LONG + 5, 3, ""), (0, 3, "decoder"), (0, 3, "memory")],
)
def test_a_long_past_is_shared_out_by_blocks(window: int, group: int, part: str) -> None:
    """Blocks folded one by one, in any order, and then joined give the bits of one pass, near float64's result."""
    rng = np.random.default_rng(3)
    # Positions before the last, at and about the end of a block.
    lengths = (LONG - 1, LONG, LONG + 1, 2 * LONG + 70)
    pages = iter(rng.permutation(60).tolist())
    texts = [Text(n, 1, tuple(next(pages) for _ in range(n // PAGE + 1))) for n in lengths]
    extras = {"part": part, "causal": part != "memory", "biases": part == "decoder"}
    problem = Problem(shape(key=8, value=20, group=group, window=window, **extras), texts, 60, seed=4)
    tile = min(QUERIES, group)
    whole, split = problem.solve(most=1, tile=tile), problem.solve(most=1, tile=tile, split=True)
    assert off(whole, problem.expected()) <= 24
    np.testing.assert_array_equal(split.view(np.uint32), whole.view(np.uint32))


def test_a_prefill_over_several_blocks() -> None:
    """Rows on both sides of a block's end, taken as one tile, each see what they may."""
    problem = Problem(shape(key=8, value=8, group=2), (Text(LONG - 5, 12, tuple(range(9))),), 9, seed=5)
    got = problem.solve()
    assert off(got, problem.expected()) <= 24
    np.testing.assert_array_equal(problem.solve(most=1, tile=2), got)


@pytest.mark.parametrize("softcap", [0.0, 30.0])
def test_sharp_attention(softcap: float) -> None:
    """Scores of hundreds, where one position takes all the weight, overflow nothing and lose nothing."""
    problem = Problem(
        shape(key=64, value=8, kinds="F32 F32", softcap=softcap), TEXTS, 10, seed=6, spread=60.0
    )
    got = problem.solve()
    # Scores of some 500 are themselves rounded to 2**-15.
    assert off(got, problem.expected()) <= 2**11


def test_one_position() -> None:
    """The first token of a text attends to itself alone: its value, to the bit."""
    problem = Problem(shape(key=8, value=16, kinds="F32 F32"), (Text(0, 1, (3,)),), 4, seed=7)
    np.testing.assert_array_equal(problem.solve()[0], problem.past[0][1][0])
