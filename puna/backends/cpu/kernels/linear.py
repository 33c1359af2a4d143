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

from puna.backends.cpu.lang import Kernel, Ptr, Value, Var
from puna.backends.cpu.panels import ROWS, SPAN, VECTOR, Panel
from puna.backends.cpu.verbs import dot_u8s8, fma, load_halves

__all__ = ["SPAN_BYTES", "few", "many", "many_scratch"]

SPAN_BYTES = 48
SCALE, SCALED_SUM, SUM, FIRST_SUM = 32, 36, 40, 44
STEPS = SPAN // 4


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


def unpack(panel: Panel, at: Ptr) -> list[Value]:
    """The 8 steps of a span, u8 [64] each, from its planes."""
    steps: list[Value | None] = [None] * STEPS
    low = first = 0
    for bits in panel.planes:
        planes = [at.load("u8", VECTOR, (first + i) * VECTOR, VECTOR) for i in range(bits)]
        for j in range(STEPS):
            shift = bits * (j // bits) - low
            moved = planes[j % bits] >> shift if shift >= 0 else planes[j % bits] << -shift
            # A plane's topmost part has nothing above it to mask away, unless it had to move up.
            whole = bits == 8 or (shift + bits == 8 and low == 0)
            part = moved if whole else moved & (((1 << bits) - 1) << low)
            known = steps[j]
            steps[j] = part if known is None else known | part
        low += bits
        first += bits
    return [step for step in steps if step is not None]


def scales_of(panel: Panel, at: Ptr, group: Value, units: Sequence[Value]) -> list[Value]:
    """Scale, and offset where the type has them, of a group: f32 [16]. at, units: the block's."""
    if not panel.quant.has_steps:
        return list(units)
    steps, kinds = at.at(group * panel.group_bytes + panel.unit_bytes), (panel.step_kind, "u8")
    return [u * steps.load(kinds[i], ROWS, i * ROWS).to("f32") for i, u in enumerate(units)]


def units_of(panel: Panel, at: Ptr) -> list[Value]:
    """A block's unit, and its low where the type has one: f32 [16]."""
    return [load_halves(at, ROWS, i * ROWS * 2) for i in range(2 if panel.quant.has_offset else 1)]


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
            dot = dot_u8s8(dot, steps[j], four, quant.bits)
        total.set(fma(dot.to("f32"), scales[h][0] * scale.splat(ROWS), total.now))
        if quant.has_offset:
            total.set(fma(scales[h][1], scaled_sum(x, halves, h, scale), total.now))


def few(k: Kernel, *, panel: Panel, tokens: int) -> None:
    """Panels begin to end - 1 times exactly `tokens` tokens; codes are unpacked in registers."""
    args, begin, end, _ = k.args
    call = Call.read(args)
    quant, halves = panel.quant, SPAN // panel.quant.group
    for p in k.loop(begin, end):
        codes = call.panels.at(p * call.panel_bytes)
        scales = codes.at(call.values // SPAN * panel.span_bytes)
        totals = [k.var(k.zeros("f32", ROWS)) for _ in range(tokens)]
        for b in k.loop(0, call.values // quant.block):
            block_scales = scales.at(b * panel.block_bytes)
            fetch(block_scales.at(call.panel_bytes), panel.block_bytes)
            units = units_of(panel, block_scales)
            for s in k.loop(0, panel.spans):
                span = b * panel.spans + s
                fetch(codes.at(span * panel.span_bytes + call.panel_bytes), panel.span_bytes)
                steps = unpack(panel, codes.at(span * panel.span_bytes))
                found = [scales_of(panel, block_scales, s * halves + h, units) for h in range(halves)]
                for t, total in enumerate(totals):
                    accumulate(panel, total, steps, found, call.x.at(call.x_stride * t + span * SPAN_BYTES))
        for t, total in enumerate(totals):
            store_rows(k, total.now, call.y.at(call.y_stride * t + p * (ROWS * 4)), call.rows - p * ROWS)


def fetch(at: Ptr, nbytes: int) -> None:
    """Ask for what the next panel will read at the same place: its streams are too short to be foreseen."""
    for offset in range(0, nbytes, VECTOR):
        at.prefetch(offset, level=2)


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
    return width * (k * ROWS + groups * ROWS * 4 * (2 if panel.quant.has_offset else 1))


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
        places = [k.select(first + i < panels, first + i, panels - 1) for i in range(width)]
        for i, p in enumerate(places):
            spread(k, panel, call, p, scratch.at(i * VECTOR), scales.at(i * ROWS * 4), width)
        for start in k.loop(0, call.tokens, tile):
            sweep(k, panel, call, scratch, scales, start, first, width, tile)


def spread(k: Kernel, panel: Panel, call: Call, p: Value, codes: Ptr, scales: Ptr, width: int) -> None:
    """Unpack panel p: steps `width` vectors apart, f32 scales and offsets likewise."""
    quant, parts = panel.quant, 2 if panel.quant.has_offset else 1
    source = call.panels.at(p * call.panel_bytes)
    block_scales = source.at(call.values // SPAN * panel.span_bytes)
    for b in k.loop(0, call.values // quant.block):
        at = block_scales.at(b * panel.block_bytes)
        units = units_of(panel, at)
        for g in k.loop(0, quant.groups):
            for i, value in enumerate(scales_of(panel, at, g, units)):
                scales.store(value, ((b * quant.groups + g) * parts + i) * (width * ROWS * 4), 4)
    for span in k.loop(0, call.values // SPAN):
        for j, step in enumerate(unpack(panel, source.at(span * panel.span_bytes))):
            codes.store(step, (span * STEPS + j) * (width * VECTOR), VECTOR)


def sweep(
    k: Kernel,
    panel: Panel,
    call: Call,
    codes: Ptr,
    scales: Ptr,
    start: Value,
    first: Value,
    width: int,
    tile: int,
) -> None:
    """One tile of tokens over `width` unpacked panels."""
    halves, parts = SPAN // panel.quant.group, 2 if panel.quant.has_offset else 1
    tokens = [k.select(start + t < call.tokens, start + t, call.tokens - 1) for t in range(tile)]
    rows = [call.x.at(t * call.x_stride) for t in tokens]
    totals = [[k.var(k.zeros("f32", ROWS)) for _ in range(width)] for _ in range(tile)]
    for span in k.loop(0, call.values // SPAN):
        at, scale_at = (
            codes.at(span * (STEPS * width * VECTOR)),
            scales.at(span * (halves * parts * width * ROWS * 4)),
        )
        xs = [row.at(span * SPAN_BYTES) for row in rows]
        accumulate_tile(panel, totals, at, scale_at, xs, width)
    for t in range(tile):
        with k.when(start + t < call.tokens):
            for i in range(width):
                row = (first + i) * ROWS
                with k.when(row < call.rows):
                    at = call.y.at((start + t) * call.y_stride + row * 4)
                    store_rows(k, totals[t][i].now, at, call.rows - row)


def accumulate_tile(
    panel: Panel, totals: Sequence[Sequence[Var]], codes: Ptr, scales: Ptr, xs: Sequence[Ptr], width: int
) -> None:
    """As `accumulate`, for all panels and tokens of a tile: each code is loaded once for all tokens."""
    quant, k = panel.quant, totals[0][0].k
    halves, parts = SPAN // quant.group, 2 if quant.has_offset else 1
    each = STEPS // halves
    for h in range(halves):
        dots = [[start_of(panel, k, x, h)] * width for x in xs]
        for j in range(h * each, (h + 1) * each):
            steps = [codes.load("u8", VECTOR, (j * width + i) * VECTOR, VECTOR) for i in range(width)]
            for t, x in enumerate(xs):
                four = x.load("i32", 1, 4 * j, 4).splat(ROWS).as_("i8")
                dots[t] = [
                    dot_u8s8(d, step, four, quant.bits) for d, step in zip(dots[t], steps, strict=True)
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
