"""Matrix products over panels of plain weights: 16 rows interleaved, value by value.

F32, F16 and BF16 stay as they are; F64 and integers become the nearest F32. Where an instruction takes pairs of BF16,
values lie, and are multiplied, two by two, with activations rounded to BF16: that form is called PAIRS.

Four sums over every fourth value, or pair, hide the latency of multiply-adds; they are added in a fixed order at the
end, for any number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from puna.backends.cpu.kernels.linear import Call, store_sums
from puna.backends.cpu.lang import Kernel, Ptr, Value, Var
from puna.backends.cpu.panels import ROWS
from puna.backends.cpu.verbs import dot_pairs, fma, load_floats
from puna.graph import Node
from puna.quants import by_name

__all__ = [
    "PAIRS",
    "SUMS",
    "added",
    "float_bytes",
    "float_linear",
    "float_pack",
    "float_products",
    "form_of",
    "is_plain",
    "loaded",
    "steps_of",
]

SUMS = 4
PAIRS = "PAIRS"
WORDS = {"F32": "u32", "F16": "u16", "BF16": "u16", PAIRS: "u16"}  # plain types that stay as they are


def form_of(product: Node) -> str:
    """What kernels take the weights of a matrix product for: their type, or PAIRS."""
    x, weight = product.inputs[:2]
    return PAIRS if x.type.dtype == "bf16" else weight.type.dtype


def is_plain(form: str) -> bool:
    """Whether weights of a form are plain ones, not blocks."""
    return form == PAIRS or by_name(form).is_float


def width_of(form: str) -> int:
    """Bytes of a value in panels."""
    return 2 if WORDS.get(form) == "u16" else 4


def float_bytes(kind: str, rows: int, values: int) -> int:
    """Bytes of a matrix [rows, values] in panels."""
    return -(-rows // ROWS) * ROWS * values * width_of(kind)


def float_pack(k: Kernel, *, form: str) -> None:
    """Panels begin to end - 1; args as `pack`'s."""
    args, begin, end, _ = k.args
    source, target = args.ptr(0), args.ptr(8)
    rows, values, row_bytes = (args.load("i64", offset=16 + 8 * i, align=8) for i in range(3))
    width, side = width_of(form), 2 if form == PAIRS else 1
    size = width if form in WORDS else by_name(form).bytes
    for p in k.loop(begin, end):
        panel = target.at(p * values * (ROWS * width))
        for r in k.loop(0, ROWS):
            row = k.select(p * ROWS + r < rows, p * ROWS + r, rows - 1)
            for i in k.loop(0, values):
                at = source.at(row * row_bytes + i * size)
                place = ((i // side * ROWS + r) * side + i % side) * width
                panel.store(at.load(WORDS[form]) if form in WORDS else load_floats(at, form, 1), place)


def float_linear(k: Kernel, *, form: str, width: int, tile: int) -> None:
    """Units of `width` panels, begin to end - 1, times all tokens, `tile` at a time; args as `many`'s."""
    args, begin, end, _ = k.args
    call, size = Call.read(args), width_of(form)
    last = (call.rows + (ROWS - 1)) // ROWS - 1
    for unit in k.loop(begin, end):
        first = unit * width
        places = [k.select(first + i < last, first + i, last) for i in range(width)]
        panels = [call.panels.at(p * call.values * (ROWS * size)) for p in places]
        for start in k.loop(0, call.tokens, tile):
            tokens = [k.select(start + t < call.tokens, start + t, call.tokens - 1) for t in range(tile)]
            xs = [call.x.at(t * call.x_stride) for t in tokens]
            for t, sums in enumerate(float_products(form, panels, call.values, xs)):
                with k.when(start + t < call.tokens):
                    store_sums(k, sums, call.y.at((start + t) * call.y_stride), call.rows, first)


def float_products(form: str, panels: Sequence[Ptr], values: Value, xs: Sequence[Ptr]) -> list[list[Value]]:
    """Panels, whose rows have `values` values, times each token: f32 [16] of each."""
    k, steps, form = panels[0].k, steps_of(form, values), form if form in WORDS else "F32"
    whole = steps // SUMS * SUMS
    totals = [[[k.var(k.zeros("f32", ROWS)) for _ in range(SUMS)] for _ in panels] for _ in xs]
    for first in k.loop(0, whole, SUMS):
        for n in range(SUMS):
            add_step(form, panels, xs, first + n, [[sums[n] for sums in token] for token in totals])
    for i in k.loop(whole, steps):
        add_step(form, panels, xs, i, [[sums[0] for sums in token] for token in totals])
    return [[(s[0].now + s[1].now) + (s[2].now + s[3].now) for s in token] for token in totals]


def add_step(
    form: str, panels: Sequence[Ptr], xs: Sequence[Ptr], i: Value, sums: Sequence[Sequence[Var]]
) -> None:
    """Add the products of step i, a value or a pair of them, of each panel and token."""
    weights = [loaded(form, panel, i * ROWS, ROWS) for panel in panels]
    for x, totals in zip(xs, sums, strict=True):
        one = repeated(form, x, i)
        for w, total in zip(weights, totals, strict=True):
            total.set(added(form, total.now, w, one))


def steps_of(form: str, values: Value) -> Value:
    return values // 2 if form == PAIRS else values


def loaded(form: str, weights: Ptr, step: Value, lanes: int) -> Value:
    """The weights of `lanes` steps from one on: f32 [lanes], or bf16 [2 lanes]."""
    if form == PAIRS:
        return weights.load("u16", 2 * lanes, step * 4)
    size = by_name(form).bytes
    return load_floats(weights, form, lanes, step * size)


def repeated(form: str, x: Ptr, step: Value) -> Value:
    """A token's value of a step, or its pair, for each row of a panel."""
    if form == PAIRS:
        return x.load("i32", 1, step * 4, 4).splat(ROWS).as_("u16")
    return x.load("f32", 1, step * 4, 4).splat(ROWS)


def added(form: str, total: Value, w: Value, x: Value) -> Value:
    return dot_pairs(total, w, x) if form == PAIRS else fma(w, x, total)
