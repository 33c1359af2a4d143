"""Row operations that every decoder is made of: arithmetic, activations, norms, parts of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd, prod
from typing import TYPE_CHECKING

from puna.backends.cpu.lang import Ptr, Value
from puna.backends.cpu.verbs import exp, fma, maximum, minimum, reciprocal_root, root, sum_lanes, tanh

if TYPE_CHECKING:
    from puna.backends.cpu.kernels.rows import Row

__all__ = ["ROW_OPS"]

LANES = 16


def sigmoid(x: Value) -> Value:
    return x.k.const("f32", 1.0, x.lanes) / (exp(-x) + 1.0)


def silu(x: Value) -> Value:
    return x / (exp(-x) + 1.0)


def gelu(x: Value) -> Value:
    inner = x * 0.79788456080286535588 * fma(x * x, x.k.const("f32", 0.044715), x.k.const("f32", 1.0))
    return x * 0.5 * (tanh(inner) + 1.0)


def gelu_erf(x: Value) -> Value:
    """The complementary error function by a rational start and an exponential (Abramowitz & Stegun 1964, 7.1.26)."""
    k, size = x.k, maximum(x, -x)
    z = size * 0.70710678118654752440
    t = k.const("f32", 1.0, x.lanes) / fma(z, k.const("f32", 0.3275911), k.const("f32", 1.0))
    powers = k.const("f32", 1.061405429, x.lanes)
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        powers = fma(powers, t, k.const("f32", factor))
    return relu(x) - size * 0.5 * (powers * t) * exp(z * -z)


def gelu_quick(x: Value) -> Value:
    return x / (exp(x * -1.702) + 1.0)


def softplus(x: Value) -> Value:
    """max(x, 0) + log(1 + u) with u = exp(-|x|); the logarithm is 2 atanh(u / (2 + u)), by its series."""
    u = exp(minimum(x, -x))
    s = u / (u + 2.0)
    square, series = s * s, x.k.const("f32", 2.0 / 13.0, x.lanes)
    for odd in (11, 9, 7, 5, 3, 1):
        series = fma(series, square, x.k.const("f32", 2.0 / odd))
    return fma(series, s, maximum(x.k.zeros("f32", x.lanes), x))


def signed_root(x: Value) -> Value:
    zeros = x.k.zeros("f32", x.lanes)
    size = root(maximum(x.k.const("f32", 1e-6, x.lanes), maximum(x, -x)))
    return x.k.select(x < 0.0, -size, x.k.select(x > 0.0, size, zeros + x))  # NaN comes through


def relu(x: Value) -> Value:
    return maximum(x.k.zeros("f32", x.lanes), x)  # in this order NaN comes through


def relu2(x: Value) -> Value:
    return relu(x) * relu(x)


ACTS: Mapping[str, Callable[[Value], Value]] = {
    "exp": exp,
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "gelu_quick": gelu_quick,
    "relu": relu,
    "relu2": relu2,
    "sigmoid": sigmoid,
    "signed_root": signed_root,
    "silu": silu,
    "softplus": softplus,
    "sqrt_softplus": lambda x: root(softplus(x)),
    "tanh": tanh,
}


def act(row: Row) -> None:
    row.map(ACTS[row.attrs["kind"]])


def gated(row: Row) -> None:
    row.map(lambda gate, up: ACTS[row.attrs["kind"]](gate) * up)


def scale(row: Row) -> None:
    row.map(lambda x: x * row.attrs["by"])


def shift(row: Row) -> None:
    row.map(lambda x: x + row.attrs["by"])


def clamp(row: Row) -> None:
    def within(x: Value) -> Value:
        low, high = (x.k.const("f32", row.attrs[end], x.lanes) for end in ("least", "most"))
        return minimum(high, maximum(low, x))  # NaN comes through both

    row.map(within)


def softcap(row: Row) -> None:
    cap = row.attrs["cap"]
    row.map(lambda x: tanh(x * (1.0 / cap)) * cap)


def binary(how: Callable[[Value, Value], Value]) -> Callable[[Row], None]:
    """how(a, b) for each value of a; b is as long, or repeated, or one value for each run of a's last dimension."""

    def emit(row: Row) -> None:
        singles, last = prod(row.op.inputs[1].shape), row.op.inputs[1].shape[-1]
        if last > 1 or row.width == 1:
            row.map(how)
            return
        for run in row.k.loop(0, row.count // row.width):
            place, at = run % singles if singles > 1 else row.k.const("i64", 0), run * (row.width * 4)
            b = row.input(1).load("f32", 1, place * 4, 4)
            for i, n in row.vectors(row.width):
                row.out.store(how(row.input(0).load("f32", n, at + i, 4), b.splat(n)), at + i, 4)

    return emit


def normalize(row: Row) -> None:
    """Over each run of the last dimension; the weight, where there is one, is as long."""
    k, width = row.k, row.width
    weighted = len(row.op.inputs) > 1
    for start in k.loop(0, row.count * 4, width * 4):
        x, out = row.input(0).at(start), row.out.at(start)
        if row.attrs["kind"] == "layer":
            mean = (total(row, x, lambda value, sum_: sum_ + value) * (1.0 / width)).splat(gcd(width, LANES))
            for i, n in row.vectors(width):
                out.store(x.load("f32", n, i, 4) - mean, i, 4)
            x = out
        squares = total(row, x, lambda value, sum_: fma(value, value, sum_))
        if row.attrs["kind"] == "l2":
            factor = k.const("f32", 1.0) / maximum(k.const("f32", row.attrs["eps"]), root(squares))
        else:
            factor = reciprocal_root(squares * (1.0 / width) + row.attrs["eps"])
        for i, n in row.vectors(width):
            value = x.load("f32", n, i, 4) * factor.splat(n)
            out.store(value * row.input(1).load("f32", n, i, 4) if weighted else value, i, 4)


def total(row: Row, x: Ptr, more: Callable[[Value, Value], Value]) -> Value:
    """A run folded by more(values, sum so far), in a fixed order."""
    found = row.k.var(row.k.zeros("f32", gcd(row.width, LANES)))
    for i, n in row.vectors(row.width):
        found.set(more(x.load("f32", n, i, 4), found.now))
    return sum_lanes(found.now)


def part(row: Row) -> None:
    wide = row.op.inputs[0].shape[-1]
    for run in row.k.loop(0, row.count // max(1, row.width)):
        copy(
            row, row.input(0).at(run * (wide * 4) + row.attrs["start"] * 4), run * (row.width * 4), row.width
        )


def cat(row: Row) -> None:
    """a [heads, size] and b [heads or 1, size]."""
    (heads, first), (repeated, second) = (operand.shape for operand in row.op.inputs)
    for h in row.k.loop(0, heads):
        at = h * (row.width * 4)
        copy(row, row.input(0).at(h * (first * 4)), at, first)
        b = row.input(1) if repeated == 1 else row.input(1).at(h * (second * 4))
        copy(row, b, at + first * 4, second)


def copy(row: Row, source: Ptr, at: Value, count: int) -> None:
    for i, n in row.vectors(count):
        row.out.store(source.load("f32", n, i, 4), at + i, 4)


ROW_OPS: Mapping[str, Callable[[Row], None]] = {
    "act": act,
    "add": binary(lambda a, b: a + b),
    "cat": cat,
    "clamp": clamp,
    "div": binary(lambda a, b: a / b),
    "gated": gated,
    "mul": binary(lambda a, b: a * b),
    "norm": normalize,
    "normalize": normalize,
    "scale": scale,
    "shift": shift,
    "slice": part,
    "softcap": softcap,
}
