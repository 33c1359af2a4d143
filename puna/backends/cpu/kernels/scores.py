"""Products of queries with the keys of a page, or of as many positions from anywhere: a vector of f32 [16] a column.

Keys lie by columns, as `kv.py` says, or by rows, as values do: where attention picks out single positions, or reads
its values out of them. By rows a product is summed up in LANES sums a position, and those by halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from puna.backends.cpu.kernels.kv import COLUMNS, key_columns, value_parts
from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.backends.cpu.verbs import fma, sum_lanes
from puna.plan.kv import PAGE
from puna.quants import by_name

__all__ = ["LANES", "WIDE", "Rows", "column_scores", "row_scores"]

LANES = 16
ROWS = 4  # that are multiplied with a query at once, or half of them with more than WIDE queries
WIDE = 6


@dataclass(frozen=True)
class Rows:
    """Rows of `stride` bytes from `base` on: one after another, or those whose numbers, i64, a table has."""

    base: Ptr
    stride: int
    table: Ptr | None = None

    def at(self, place: Value | int) -> Ptr:
        if self.table:
            place = self.table.load("i64", 1, place * 8, 8)
        return self.base.at(place * self.stride)


def column_scores(k: Kernel, kind: str, size: int, keys: Ptr, queries: Sequence[Ptr]) -> list[list[Value]]:
    """For each query, f32 [size], its products with a page's keys that lie by columns."""
    scores = [[k.var(k.zeros("f32", LANES)) for _ in range(COLUMNS)] for _ in queries]
    for d, columns in key_columns(k, kind, size, keys):
        for query, totals in zip(queries, scores, strict=True):
            q = query.load("f32", 1, d * 4, 4).splat(LANES)
            for column, total in zip(columns, totals, strict=True):
                total.set(fma(q, column, total.now))
    return [[total.now for total in totals] for totals in scores]


def row_scores(
    k: Kernel, kind: str, size: int, rows: Rows, count: Value, queries: Sequence[Ptr], out: Ptr
) -> list[list[Value]]:
    """As `column_scores`, with `count` rows up to PAGE; products beyond are of any value.

    out: f32 [queries, PAGE].
    """
    quant, lanes = by_name(kind), gcd(size, LANES)
    vectors = 1 if quant.is_float else quant.block // LANES
    several = ROWS if len(queries) <= WIDE else ROWS // 2
    for j in k.loop(0, count, several):
        found = [rows.at(j + n) for n in range(several)]
        scores = [[k.var(k.zeros("f32", lanes)) for _ in found] for _ in queries]
        for column in k.loop(0, size, lanes * vectors):
            keys = [value_parts(k, kind, row, column, lanes, vectors) for row in found]
            for query, totals in zip(queries, scores, strict=True):
                for v in range(vectors):
                    q = query.load("f32", lanes, (column + v * lanes) * 4, 4)
                    for parts, total in zip(keys, totals, strict=True):
                        total.set(fma(q, parts[v], total.now))
        for i, totals in enumerate(scores):
            out.store(sums_of([total.now for total in totals]), (j + i * PAGE) * 4, 4)
    return [
        [out.load("f32", LANES, (i * PAGE + c * LANES) * 4, 4) for c in range(COLUMNS)]
        for i in range(len(queries))
    ]


def sums_of(parts: Sequence[Value]) -> Value:
    """The sums of the lanes of two or four vectors, side by side; lanes are added by halves, quarters and so on."""
    if parts[0].lanes < ROWS:
        each = [sum_lanes(part) for part in parts]
        pairs = [a.pair(b) for a, b in zip(each[::2], each[1::2], strict=True)]
        return pairs[0].cat(pairs[1]) if len(pairs) > 1 else pairs[0]
    runs, width = 1, parts[0].lanes
    while len(parts) > 1:  # halves of two vectors into one
        parts = [halved(a, runs, width, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        runs, width = 2 * runs, width // 2
    (sums,) = parts
    while width > 1:
        sums, width = halved(sums, runs, width), width // 2
    return sums


def halved(x: Value, runs: int, width: int, other: Value | None = None) -> Value:
    """Of each run of so many lanes, the first half plus the second; then those of another vector."""
    starts = [run * width for run in range(runs)] + [x.lanes + run * width for run in range(runs) if other]
    first = [start + i for start in starts for i in range(width // 2)]
    return x.shuffle(first, other) + x.shuffle([lane + width // 2 for lane in first], other)
