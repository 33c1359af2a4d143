"""Matrix products over panels of quantised weights, for a few tokens and for many.

Both kernels walk a row in the same order with the same operations, so a result has the same bits from either: for each
group, the byte dot exactly as an integer, then total = dot * (weight scale * activation scale) + total, then the
offset's term.

Activations lie in spans of 32 values, 48 bytes each: 32 i8 codes, f32 scale, f32 scale * sum of the codes, i32 sum of
the codes, i32 sum of the first 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from puna.backends.cpu.kernels.blocks import Scales, codes_of
from puna.backends.cpu.lang import Kernel, Ptr, Value, Var
from puna.backends.cpu.panels import ROWS, SPAN, STEPS, VECTOR, Panel
from puna.backends.cpu.verbs import dot_u8s8, fma

__all__ = ["SPAN_BYTES", "few", "many", "many_scratch"]

SPAN_BYTES = 48
SCALE, SCALED_SUM, SUM, FIRST_SUM = 32, 36, 40, 44


@dataclass(frozen=True)
class Call:
    """The arguments of a linear kernel.

    0 panels, 8 activations, 16 result f32, 24 rows of the matrix, 32 values a row, 40 bytes a panel, 48 bytes between
    the activations of tokens, 56 bytes between their results, 64 tokens.
    """

    panels: Ptr
    x: Ptr
    y: Ptr
    rows: Value
    values: Value
    panel_bytes: Value
    x_stride: Value
    y_stride: Value
    tokens: Value

    @classmethod
    def read(cls, args: Ptr) -> Call:
        numbers = [args.load("i64", offset=24 + 8 * i, align=8) for i in range(6)]
        return cls(args.ptr(0), args.ptr(8), args.ptr(16), *numbers)


def accumulate(
    panel: Panel, total: Var, steps: Sequence[Value], scales: Sequence[Sequence[Value]], x: Ptr
) -> None:
    """Add a span's products of 16 rows and one token. scales: of each of the span's groups."""
    quant, k = panel.quant, total.k
    halves = SPAN // quant.group  # 1, or 2 for groups of 16
    scale, each = x.load("f32", 1, SCALE, 4), STEPS // halves
    for h in range(halves):
        dot = start_of(panel, k, x, h)
        for j in range(h * each, (h + 1) * each):
            four = x.load("i32", 1, 4 * j, 4).splat(ROWS).as_("i8")
            dot = dot_u8s8(dot, steps[j], four, panel.code_bits)
        total.set(fma(dot.to("f32"), scales[h][0] * scale.splat(ROWS), total.now))
        if quant.has_offset:
            total.set(fma(scales[h][1], scaled_sum(x, halves, h, scale), total.now))


def few(k: Kernel, *, panel: Panel, tokens: int) -> None:
    """Panels begin to end - 1 times exactly `tokens` tokens; codes are unpacked in registers."""
    args, begin, end, _ = k.args
    call = Call.read(args)
    for p in k.loop(begin, end):
        xs = [call.x.at(call.x_stride * t) for t in range(tokens)]
        totals = products(panel, call.panels.at(p * call.panel_bytes), call.values, call.panel_bytes, xs)
        for t, total in enumerate(totals):
            store_rows(k, total, call.y.at(call.y_stride * t + p * (ROWS * 4)), call.rows - p * ROWS)


def products(panel: Panel, codes: Ptr, values: Value, ahead: Value, xs: Sequence[Ptr]) -> list[Value]:
    """A panel's rows of `values` values times each token: f32 [16]. ahead: bytes from here to the next panel."""
    k, quant, halves = codes.k, panel.quant, SPAN // panel.quant.group
    scales = codes.at(values // quant.block * panel.code_bytes)
    totals = [k.var(k.zeros("f32", ROWS)) for _ in xs]
    for b in k.loop(0, values // quant.block):
        block, block_scales = codes.at(b * panel.code_bytes), scales.at(b * panel.scale_bytes)
        fetch(block_scales.at(ahead), panel.scale_bytes)
        found, groups = codes_of(panel, block), Scales(panel, block_scales)
        for s in k.loop(0, panel.spans):
            fetch(block.at(s * panel.span_bytes).at(ahead), panel.span_bytes)
            steps = found.steps(s)
            each = [groups.of(s * halves + h) for h in range(halves)]
            for x, total in zip(xs, totals, strict=True):
                accumulate(panel, total, steps, each, x.at((b * panel.spans + s) * SPAN_BYTES))
    return [total.now for total in totals]


def fetch(at: Ptr, nbytes: int) -> None:
    """Ask for what the next panel will read at the same place: its streams are too short to be foreseen."""
    for offset in range(0, nbytes, VECTOR):
        at.prefetch(offset)


def store_rows(k: Kernel, values: Value, at: Ptr, left: Value) -> None:
    """16 results, or the first `left` of them in the last panel."""
    with k.when(left >= ROWS):
        at.store(values, 0, 4)
    with k.when(left < ROWS):
        for i in range(ROWS - 1):
            with k.when(left > i):
                at.store(values[i], 4 * i, 4)


def many_scratch(panel: Panel, k: int, width: int) -> int:
    """Bytes that `many` wants for `width` panels of rows of k values."""
    groups = k // panel.quant.group
    return width * (k * ROWS + groups * ROWS * 4 * panel.parts)


def many(k: Kernel, *, panel: Panel, width: int, tile: int) -> None:
    """Units of `width` panels, begin to end - 1, times all tokens, `tile` at a time.

    A unit's codes and scales are unpacked once, then every tile of tokens sweeps over them.
    """
    args, begin, end, scratch = k.args
    call = Call.read(args)
    panels = (call.rows + (ROWS - 1)) // ROWS
    scales = scratch.at(call.values * (ROWS * width))
    for unit in k.loop(begin, end):
        first = unit * width
        for i in range(width):
            p = k.select(first + i < panels, first + i, panels - 1)
            source = call.panels.at(p * call.panel_bytes)
            spread(panel, source, call.values, scratch.at(i * VECTOR), scales.at(i * ROWS * 4), width)
        for start in k.loop(0, call.tokens, tile):
            tokens = [k.select(start + t < call.tokens, start + t, call.tokens - 1) for t in range(tile)]
            xs = [call.x.at(t * call.x_stride) for t in tokens]
            totals = sweep(panel, call.values, scratch, scales, xs, width)
            for t, sums in enumerate(totals):
                with k.when(start + t < call.tokens):
                    store_sums(k, sums, call.y.at((start + t) * call.y_stride), call.rows, first)


def spread(panel: Panel, source: Ptr, values: Value, codes: Ptr, scales: Ptr, width: int) -> None:
    """Unpack a panel's rows of `values` values: steps `width` vectors apart, f32 scales and offsets likewise."""
    quant, k = panel.quant, source.k
    block_scales = source.at(values // quant.block * panel.code_bytes)
    for b in k.loop(0, values // quant.block):
        groups = Scales(panel, block_scales.at(b * panel.scale_bytes))
        for g in k.loop(0, quant.groups):
            for i, value in enumerate(groups.of(g)):
                scales.store(value, ((b * quant.groups + g) * panel.parts + i) * (width * ROWS * 4), 4)
    for b in k.loop(0, values // quant.block):
        block = codes_of(panel, source.at(b * panel.code_bytes))
        for s in k.loop(0, panel.spans):
            for j, step in enumerate(block.steps(s)):
                codes.store(step, ((b * panel.spans + s) * STEPS + j) * (width * VECTOR), VECTOR)


def sweep(
    panel: Panel, values: Value, codes: Ptr, scales: Ptr, xs: Sequence[Ptr], width: int
) -> list[list[Value]]:
    """A tile of tokens, whose activations are at xs, times `width` unpacked panels: f32 [16] of each."""
    k, halves = codes.k, SPAN // panel.quant.group
    totals = [[k.var(k.zeros("f32", ROWS)) for _ in range(width)] for _ in xs]
    for span in k.loop(0, values // SPAN):
        at = codes.at(span * (STEPS * width * VECTOR))
        scale_at = scales.at(span * (halves * panel.parts * width * ROWS * 4))
        accumulate_tile(panel, totals, at, scale_at, [x.at(span * SPAN_BYTES) for x in xs], width)
    return [[total.now for total in sums] for sums in totals]


def store_sums(k: Kernel, sums: Sequence[Value], y: Ptr, rows: Value, first: Value) -> None:
    """A token's results of panels `first` and those that follow; y: its results from row 0 on."""
    for i, values in enumerate(sums):
        row = (first + i) * ROWS
        with k.when(row < rows):
            store_rows(k, values, y.at(row * 4), rows - row)


def accumulate_tile(
    panel: Panel, totals: Sequence[Sequence[Var]], codes: Ptr, scales: Ptr, xs: Sequence[Ptr], width: int
) -> None:
    """As `accumulate`, for all panels and tokens of a tile: each code is loaded once for all tokens."""
    quant, k = panel.quant, totals[0][0].k
    halves, parts = SPAN // quant.group, panel.parts
    each = STEPS // halves
    for h in range(halves):
        dots = [[start_of(panel, k, x, h)] * width for x in xs]
        for j in range(h * each, (h + 1) * each):
            steps = [codes.load("u8", VECTOR, (j * width + i) * VECTOR, VECTOR) for i in range(width)]
            for t, x in enumerate(xs):
                four = x.load("i32", 1, 4 * j, 4).splat(ROWS).as_("i8")
                dots[t] = [
                    dot_u8s8(d, step, four, panel.code_bits) for d, step in zip(dots[t], steps, strict=True)
                ]
        for i in range(width):
            at = scales.at((h * parts * width + i) * ROWS * 4)
            weight = at.load("f32", ROWS, 0, 4)
            low = at.load("f32", ROWS, width * ROWS * 4, 4) if quant.has_offset else None
            for t, x in enumerate(xs):
                scale, total = x.load("f32", 1, SCALE, 4), totals[t][i]
                total.set(fma(dots[t][i].to("f32"), weight * scale.splat(ROWS), total.now))
                if low is not None:
                    total.set(fma(low, scaled_sum(x, halves, h, scale), total.now))


def group_sum(x: Ptr, halves: int, h: int) -> Value:
    """Sum of the codes of the span, or of its half h."""
    if halves == 1:
        return x.load("i32", 1, SUM, 4)
    first = x.load("i32", 1, FIRST_SUM, 4)
    return first if h == 0 else x.load("i32", 1, SUM, 4) - first


def start_of(panel: Panel, k: Kernel, x: Ptr, h: int) -> Value:
    """What the zero point adds to a dot: -zero * (sum of the activation's codes)."""
    if not panel.quant.zero:
        return k.zeros("i32", ROWS)
    return (group_sum(x, SPAN // panel.quant.group, h).splat(ROWS)) * -panel.quant.zero


def scaled_sum(x: Ptr, halves: int, h: int, scale: Value) -> Value:
    """Sum of the activations of a group, as f32."""
    return x.load("f32", 1, SCALED_SUM, 4) if halves == 1 else group_sum(x, halves, h).to("f32") * scale
