"""Matrix products over panels of plain weights: 16 rows interleaved, value by value.

F32, F16 and BF16 stay as they are; F64 and integers become the nearest F32.

Four sums over every fourth value hide the latency of fused multiply-adds; they are added in a fixed order at the end,
for any number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from puna.backends.cpu.kernels.linear import Call, store_rows
from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.backends.cpu.panels import ROWS
from puna.backends.cpu.verbs import fma, load_floats
from puna.quants import by_name

__all__ = ["float_bytes", "float_linear", "float_pack", "float_products", "kept"]

SUMS = 4
WORDS = {"F32": "u32", "F16": "u16", "BF16": "u16"}  # plain types that stay as they are


def kept(kind: str) -> str:
    """What values of a plain type are in panels."""
    return kind if kind in WORDS else "F32"


def float_bytes(kind: str, rows: int, values: int) -> int:
    """Bytes of a matrix [rows, values] in panels."""
    return -(-rows // ROWS) * ROWS * values * by_name(kept(kind)).bytes


def float_pack(k: Kernel, *, kind: str) -> None:
    """Panels begin to end - 1; args as `pack`'s."""
    args, begin, end, _ = k.args
    source, target = args.ptr(0), args.ptr(8)
    rows, values, row_bytes = (args.load("i64", offset=16 + 8 * i, align=8) for i in range(3))
    size, stored = by_name(kind).bytes, kept(kind)
    width = by_name(stored).bytes
    for p in k.loop(begin, end):
        panel = target.at(p * values * (ROWS * width))
        for r in k.loop(0, ROWS):
            row = k.select(p * ROWS + r < rows, p * ROWS + r, rows - 1)
            for i in k.loop(0, values):
                at, place = source.at(row * row_bytes + i * size), (i * ROWS + r) * width
                panel.store(at.load(WORDS[kind]) if kind in WORDS else load_floats(at, kind, 1), place)


def float_linear(k: Kernel, *, kind: str, tile: int) -> None:
    """Panels begin to end - 1 times all tokens, `tile` at a time; args as `few`'s, activations f32."""
    args, begin, end, _ = k.args
    call, size = Call.read(args), by_name(kept(kind)).bytes
    for p in k.loop(begin, end):
        weights = call.panels.at(p * call.values * (ROWS * size))
        for start in k.loop(0, call.tokens, tile):
            tokens = [k.select(start + t < call.tokens, start + t, call.tokens - 1) for t in range(tile)]
            xs = [call.x.at(t * call.x_stride) for t in tokens]
            for t, total in enumerate(float_products(kind, weights, call.values, xs)):
                with k.when(start + t < call.tokens):
                    at = call.y.at((start + t) * call.y_stride + p * (ROWS * 4))
                    store_rows(k, total, at, call.rows - p * ROWS)


def float_products(kind: str, weights: Ptr, values: Value, xs: Sequence[Ptr]) -> list[Value]:
    """A panel's rows of `values` values times each token: f32 [16]."""
    k, kind = weights.k, kept(kind)
    size = by_name(kind).bytes
    whole = values // SUMS * SUMS
    totals = [[k.var(k.zeros("f32", ROWS)) for _ in range(SUMS)] for _ in xs]
    for first in k.loop(0, whole, SUMS):
        for n in range(SUMS):
            w = load_floats(weights, kind, ROWS, (first + n) * (ROWS * size))
            for x, sums in zip(xs, totals, strict=True):
                sums[n].set(fma(w, x.load("f32", 1, (first + n) * 4, 4).splat(ROWS), sums[n].now))
    for i in k.loop(whole, values):
        w = load_floats(weights, kind, ROWS, i * (ROWS * size))
        for x, sums in zip(xs, totals, strict=True):
            sums[0].set(fma(w, x.load("f32", 1, i * 4, 4).splat(ROWS), sums[0].now))
    return [(sums[0].now + sums[1].now) + (sums[2].now + sums[3].now) for sums in totals]
