"""Matrix products straight on the file's rows, for models larger than memory: slower than panels, the same bits.

A group's byte dot is exact in any order, and what follows it, one multiply-add of the scales and one of the offset, is
what the panel kernels do; float rows keep the panel kernels' four sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from puna.backends.cpu.kernels.floats import PAIRS, SUMS, added, is_plain, loaded, steps_of
from puna.backends.cpu.kernels.linear import SCALE, SPAN_BYTES, Call, group_sum, scaled_sum
from puna.backends.cpu.lanes import LLVMBlock, value_of
from puna.backends.cpu.lang import Kernel, Ptr, Value, Var
from puna.backends.cpu.panels import ROWS, SPAN, VECTOR, Panel
from puna.backends.cpu.verbs import dot_u8s8, fma, sum_lanes
from puna.quants import by_name

__all__ = ["direct", "float_direct", "last_row", "row_products"]


def direct(k: Kernel, *, panel: Panel, tile: int) -> None:
    """Runs of 16 rows, begin to end - 1, times all tokens; args as those of `few`, a row in the place of a panel."""
    each_row(k, panel.name, tile)


def float_direct(k: Kernel, *, form: str, tile: int) -> None:
    """As `direct`, for rows of a plain type."""
    each_row(k, form, tile)


def each_row(k: Kernel, form: str, tile: int) -> None:
    args, begin, end, _ = k.args
    call = Call.read(args)
    for row in k.loop(begin * ROWS, last_row(k, end, call.rows)):
        weights = call.panels.at(row * call.panel_bytes)
        for start in k.loop(0, call.tokens, tile):
            tokens = [k.select(start + t < call.tokens, start + t, call.tokens - 1) for t in range(tile)]
            xs = [call.x.at(t * call.x_stride) for t in tokens]
            for t, result in enumerate(row_products(form, weights, call.values, xs)):
                with k.when(start + t < call.tokens):
                    call.y.at((start + t) * call.y_stride + row * 4).store(result, 0, 4)


def row_products(form: str, weights: Ptr, values: Value, xs: Sequence[Ptr]) -> list[Value]:
    """A row of `values` values in the file's form times each token: f32."""
    if is_plain(form):
        return float_row_products(form, weights, values, xs)
    k, panel, quant = weights.k, Panel(form), by_name(form)
    totals = [k.var(k.zeros("f32")) for _ in xs]
    for b in k.loop(0, values // quant.block):
        block = LLVMBlock(weights.at(b * quant.bytes))
        parts = [x.at(b * (panel.spans * SPAN_BYTES)) for x in xs]
        for g in range(quant.groups):
            add_group(panel, block, g, parts, totals)
    return [total.now for total in totals]


def add_group(panel: Panel, block: LLVMBlock, g: int, xs: Sequence[Ptr], totals: Sequence[Var]) -> None:
    """Add the products of group g of a block and each token's values."""
    quant, k = panel.quant, totals[0].k
    halves = SPAN // quant.group
    span, half = g // halves, g % halves
    codes = widened(value_of(quant.codes(block, g)))
    scale, offset = quant.scale(block, g), quant.offset(block, g)
    assert scale is not None
    for x, total in zip(xs, totals, strict=True):
        at = x.at(span * SPAN_BYTES)
        own = at.load("f32", 1, SCALE, 4)
        values = widened(at.load("i8", quant.group, half * quant.group))
        dot = sum_lanes(dot_u8s8(k.zeros("i32", ROWS), codes, values, panel.code_bits))
        if quant.zero:
            dot = dot + group_sum(at, halves, half) * -quant.zero
        total.set(fma(dot.to("f32"), value_of(scale) * own, total.now))
        if offset is not None:
            total.set(fma(value_of(offset), scaled_sum(at, halves, half, own), total.now))


def widened(values: Value) -> Value:
    """The lanes of a group, then zeros up to what a byte dot takes."""
    return values.cat(values.k.zeros(values.kind, VECTOR - values.lanes))


def float_row_products(form: str, weights: Ptr, values: Value, xs: Sequence[Ptr]) -> list[Value]:
    k, steps = weights.k, steps_of(form, values)
    whole, own = steps // SUMS * SUMS, PAIRS if form == PAIRS else "F32"
    totals = [k.var(k.zeros("f32", SUMS)) for _ in xs]
    for i in k.loop(0, whole, SUMS):
        w = loaded(form, weights, i, SUMS)
        for x, total in zip(xs, totals, strict=True):
            total.set(added(form, total.now, w, loaded(own, x, i, SUMS)))
    firsts = [k.var(total.now[0]) for total in totals]
    for i in k.loop(whole, steps):
        w = loaded(form, weights, i, 1)
        for x, first in zip(xs, firsts, strict=True):
            first.set(added(form, first.now, w, loaded(own, x, i, 1)))
    rests = [total.now for total in totals]
    return [(f.now + r[1]) + (r[2] + r[3]) for f, r in zip(firsts, rests, strict=True)]


def last_row(k: Kernel, end: Value, rows: Value) -> Value:
    return k.select(end * ROWS < rows, end * ROWS, rows)
