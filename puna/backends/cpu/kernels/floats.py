"""Matrix products over panels of float weights (F32, F16, BF16): 16 rows interleaved, value by value.

Four sums over every fourth value hide the latency of fused multiply-adds; they are added in a fixed order at the end,
for any number of tokens.
"""

from __future__ import annotations

from puna.backends.cpu.kernels.linear import Call, store_rows
from puna.backends.cpu.lang import Kernel
from puna.backends.cpu.panels import ROWS
from puna.backends.cpu.verbs import fma, load_floats
from puna.quants import by_name

__all__ = ["float_bytes", "float_linear", "float_pack"]

SUMS = 4


def float_bytes(kind: str, rows: int, values: int) -> int:
    """Bytes of a matrix [rows, values] in panels."""
    return -(-rows // ROWS) * ROWS * values * by_name(kind).bytes


def float_pack(k: Kernel, *, kind: str) -> None:
    """Panels begin to end - 1; args as `pack`'s."""
    args, begin, end, _ = k.args
    source, target = args.ptr(0), args.ptr(8)
    rows, values, row_bytes = (args.load("i64", offset=16 + 8 * i, align=8) for i in range(3))
    size = by_name(kind).bytes
    word = {2: "u16", 4: "u32"}[size]
    for p in k.loop(begin, end):
        panel = target.at(p * values * (ROWS * size))
        for r in k.loop(0, ROWS):
            row = k.select(p * ROWS + r < rows, p * ROWS + r, rows - 1)
            for i in k.loop(0, values):
                panel.store(source.load(word, 1, row * row_bytes + i * size), (i * ROWS + r) * size)


def float_linear(k: Kernel, *, kind: str, tile: int) -> None:
    """Panels begin to end - 1 times all tokens, `tile` at a time; args as `few`'s, activations f32."""
    args, begin, end, _ = k.args
    call, size = Call.read(args), by_name(kind).bytes
    whole = call.values // SUMS * SUMS
    for p in k.loop(begin, end):
        weights = call.panels.at(p * call.values * (ROWS * size))
        for start in k.loop(0, call.tokens, tile):
            tokens = [k.select(start + t < call.tokens, start + t, call.tokens - 1) for t in range(tile)]
            xs = [call.x.at(t * call.x_stride) for t in tokens]
            totals = [[k.var(k.zeros("f32", ROWS)) for _ in range(SUMS)] for _ in xs]
            for first in k.loop(0, whole, SUMS):
                for n in range(SUMS):
                    w = load_floats(weights, kind, ROWS, (first + n) * (ROWS * size))
                    for x, sums in zip(xs, totals, strict=True):
                        sums[n].set(fma(w, x.load("f32", 1, (first + n) * 4, 4).splat(ROWS), sums[n].now))
            for i in k.loop(whole, call.values):
                w = load_floats(weights, kind, ROWS, i * (ROWS * size))
                for x, sums in zip(xs, totals, strict=True):
                    sums[0].set(fma(w, x.load("f32", 1, i * 4, 4).splat(ROWS), sums[0].now))
            for t, sums in enumerate(totals):
                with k.when(start + t < call.tokens):
                    total = (sums[0].now + sums[1].now) + (sums[2].now + sums[3].now)
                    at = call.y.at((start + t) * call.y_stride + p * (ROWS * 4))
                    store_rows(k, total, at, call.rows - p * ROWS)
