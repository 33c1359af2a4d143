"""One NumPy function an operation: `kernel(step, node, out, *operands)` fills `out`.

`out` may be the memory of the first operand where the plan says that an operation may overwrite it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.reference.attention import (
    attend,
    attend_both,
    attend_chosen,
    index,
    index_blocks,
    kv_store,
)
from puna.backends.reference.recurrent import RECURRENT
from puna.backends.reference.step import Step
from puna.graph import Node, Rope, hadamard_size
from puna.quants import by_name, dequantize

__all__ = ["KERNELS", "Array", "Kernel"]

Array = NDArray[Any]
Kernel = Callable[..., None]


def embed(step: Step, node: Node, out: Array, table: Array, ids: Array) -> None:
    rows = table[ids]
    if rows.dtype == np.float32:
        out[:] = rows
    else:
        dequantize(by_name(node.inputs[0].type.dtype), rows, out=out)


def linear(step: Step, node: Node, out: Array, x: Array, w: Array) -> None:
    np.matmul(x.reshape(-1, x.shape[-1]), w.T, out=out.reshape(-1, out.shape[-1]))


def linear_experts(step: Step, node: Node, out: Array, x: Array, w: Array, ids: Array) -> None:
    x = np.broadcast_to(x.reshape(x.shape[0], -1, x.shape[-1]), (*ids.shape, x.shape[-1]))
    for expert in np.unique(ids):
        chosen = ids == expert
        out[chosen] = x[chosen] @ w[expert].T


def linear_heads(step: Step, node: Node, out: Array, x: Array, w: Array) -> None:
    np.matmul(x.transpose(1, 0, 2), w.transpose(0, 2, 1), out=out.transpose(1, 0, 2))


def add_experts(step: Step, node: Node, out: Array, x: Array, b: Array, ids: Array) -> None:
    np.add(x, b[ids], out=out)


def add(step: Step, node: Node, out: Array, a: Array, b: Array) -> None:
    np.add(a, b, out=out)


def mul(step: Step, node: Node, out: Array, a: Array, b: Array) -> None:
    np.multiply(a, b, out=out)


def shift(step: Step, node: Node, out: Array, x: Array) -> None:
    np.add(x, np.float32(cast(float, node.attrs["by"])), out=out)


def scale(step: Step, node: Node, out: Array, x: Array) -> None:
    np.multiply(x, np.float32(cast(float, node.attrs["by"])), out=out)


def clamp(step: Step, node: Node, out: Array, x: Array) -> None:
    least, most = (np.float32(cast(float, node.attrs[end])) for end in ("least", "most"))
    np.clip(x, least, most, out=out)


def div(step: Step, node: Node, out: Array, a: Array, b: Array) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):  # a file may hold zeros: the result shows them
        np.divide(a, b, out=out)


def normalize(step: Step, node: Node, out: Array, x: Array) -> None:
    if node.attrs["kind"] == "layer":
        x = np.subtract(x, np.mean(x, axis=-1, keepdims=True), out=out)
    eps = np.float32(cast(float, node.attrs["eps"]))
    if node.attrs["kind"] == "l2":
        np.divide(x, np.maximum(np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True)), eps), out=out)
        return
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    np.multiply(x, 1 / np.sqrt(mean + eps), out=out)


def norm(step: Step, node: Node, out: Array, x: Array, w: Array) -> None:
    normalize(step, node, out, x)
    out *= w


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right 0
        return cast(Array, 1 / (1 + np.exp(-x)))


def softplus(x: Array) -> Array:
    return cast(Array, np.logaddexp(x, np.float32(0)))


def gelu(x: Array) -> Array:
    inner = np.float32(0.79788456080286535588) * x * (1 + np.float32(0.044715) * np.square(x))
    return cast(Array, np.float32(0.5) * x * (1 + np.tanh(inner)))


def gelu_erf(x: Array) -> Array:
    """The error function within 1.5e-7 (Abramowitz & Stegun 1964, 7.1.26)."""
    z = np.abs(x.astype(np.float64)) * math.sqrt(0.5)
    t = 1 / (1 + 0.3275911 * z)
    powers = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    lower: Array = 0.5 * np.abs(x) * powers * np.exp(-z * z)
    return np.maximum(x, 0) - lower


def exponential(x: Array) -> Array:
    with np.errstate(over="ignore"):  # a file may hold any numbers: the result shows them
        return np.exp(x)


ACTS: Mapping[str, Callable[[Array], Array]] = {
    "exp": exponential,
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "gelu_quick": lambda x: x * sigmoid(np.float32(1.702) * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.square(np.maximum(x, 0)),
    "sigmoid": sigmoid,
    "signed_root": lambda x: np.sign(x) * np.sqrt(np.maximum(np.abs(x), np.float32(1e-6))),
    "silu": lambda x: x * sigmoid(x),
    "softplus": softplus,
    "sqrt_softplus": lambda x: np.sqrt(softplus(x)),
    "tanh": np.tanh,
}


def act(step: Step, node: Node, out: Array, x: Array) -> None:
    out[:] = ACTS[cast(str, node.attrs["kind"])](x)


def gated(step: Step, node: Node, out: Array, gate: Array, up: Array) -> None:
    np.multiply(ACTS[cast(str, node.attrs["kind"])](gate), up, out=out)


def part(step: Step, node: Node, out: Array, x: Array) -> None:
    start, size = cast(int, node.attrs["start"]), cast(int, node.attrs["size"])
    out[:] = x[..., start : start + size]


def cat(step: Step, node: Node, out: Array, a: Array, b: Array) -> None:
    size = a.shape[-1]
    out[..., :size], out[..., size:] = a, b


def sinkhorn(step: Step, node: Node, out: Array, x: Array) -> None:
    eps, rounds = np.float32(cast(float, node.attrs["eps"])), cast(int, node.attrs["rounds"])
    w = np.exp(x - x.max(axis=-1, keepdims=True))
    w = w / w.sum(axis=-1, keepdims=True) + eps
    for n in range(rounds):
        w = w / (w.sum(axis=-1, keepdims=True) + eps) if n else w
        w = w / (w.sum(axis=-2, keepdims=True) + eps)
    out[:] = w.transpose(0, 2, 1)


def total(step: Step, node: Node, out: Array, x: Array) -> None:
    np.sum(x, axis=-1, keepdims=True, out=out)


def softmax(step: Step, node: Node, out: Array, x: Array) -> None:
    np.exp(x - x.max(axis=-1, keepdims=True), out=out)
    out /= out.sum(axis=-1, keepdims=True)


def hadamard(step: Step, node: Node, out: Array, x: Array) -> None:
    """The fast Walsh-Hadamard transform (Fino & Algazi 1976)."""
    size = hadamard_size(x.shape[-1])
    y, half = x.reshape(-1, size).astype(x.dtype), 1
    while half < size:
        pairs = y.reshape(-1, size // (2 * half), 2, half)
        y = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        half *= 2
    out[:] = (y.reshape(x.shape) * x.dtype.type(size**-0.5)).reshape(x.shape)


def softcap(step: Step, node: Node, out: Array, x: Array) -> None:
    cap = np.float32(cast(float, node.attrs["cap"]))
    np.multiply(np.tanh(x / cap), cap, out=out)


def share(step: Step, node: Node, out: Array, x: Array) -> None:
    np.divide(x, np.maximum(x.sum(axis=-1, keepdims=True), 2**-14), out=out)


def top(step: Step, node: Node, out: Array, x: Array) -> None:
    out[:] = np.argsort(-x, axis=-1, kind="stable")[..., : out.shape[-1]]


def whole(step: Step, node: Node, out: Array, x: Array) -> None:
    out[:] = x


def group_of(step: Step, node: Node, out: Array, ids: Array) -> None:
    np.floor_divide(ids, cast(int, node.attrs["size"]), out=out)


def pick(step: Step, node: Node, out: Array, x: Array, ids: Array) -> None:
    out[:] = np.take_along_axis(x, ids, axis=-1)


def weighted_sum(step: Step, node: Node, out: Array, x: Array, w: Array | None = None) -> None:
    if w is None:
        np.sum(x, axis=1, out=out)
    elif w.ndim == 3:
        np.matmul(w, x, out=out)
    else:
        np.matmul(w[:, None, :], x, out=out[:, None, :])


def best_groups(step: Step, node: Node, out: Array, x: Array) -> None:
    groups, used = cast(int, node.attrs["groups"]), cast(int, node.attrs["used"])
    grouped = x.reshape(*x.shape[:-1], groups, -1)
    scores = np.sort(grouped, axis=-1)[..., -2:].sum(axis=-1)
    order = np.argsort(-scores, axis=-1, kind="stable")
    left = np.ones(scores.shape, bool)
    np.put_along_axis(left, order[..., :used], False, axis=-1)
    out[:] = np.where(left[..., None], -np.inf, grouped).reshape(x.shape)


def select(step: Step, node: Node, out: Array, x: Array) -> None:
    np.take(x, step.batch.outputs, axis=0, out=out)


def rope(step: Step, node: Node, out: Array, x: Array, factors: Array | None = None) -> None:
    rule = cast(Rope, node.attrs["rope"])
    cos, sin = step.angles(rule, factors)  # [T, 1, dims / 2]
    half = rule.dims // 2
    if rule.layout == "halves":
        first, second = slice(0, half), slice(half, rule.dims)
    else:
        first, second = slice(0, rule.dims, 2), slice(1, rule.dims, 2)
    a, b = x[..., first], x[..., second]
    rotated = a * cos - b * sin, a * sin + b * cos
    out[..., first], out[..., second] = rotated
    out[..., rule.dims :] = x[..., rule.dims :]


def temper(step: Step, node: Node, out: Array, x: Array) -> None:
    length, by = cast(int, node.attrs["length"]), cast(float, node.attrs["by"])
    positions = step.batch.positions + cast(int, node.attrs.get("offset", 0))
    factor = 1.0 + by * np.log1p(np.floor(positions / length))
    np.multiply(x, factor.astype(np.float32)[:, None, None], out=out)


KERNELS: Mapping[str, Kernel] = {
    **RECURRENT,
    "act": act,
    "add": add,
    "add_experts": add_experts,
    "attend": attend,
    "attend_both": attend_both,
    "attend_chosen": attend_chosen,
    "best_groups": best_groups,
    "cat": cat,
    "clamp": clamp,
    "div": div,
    "embed": embed,
    "gated": gated,
    "group_of": group_of,
    "index": index,
    "index_blocks": index_blocks,
    "kv_store": kv_store,
    "linear": linear,
    "linear_experts": linear_experts,
    "linear_heads": linear_heads,
    "mul": mul,
    "norm": norm,
    "normalize": normalize,
    "pick": pick,
    "rope": rope,
    "scale": scale,
    "select": select,
    "share": share,
    "shift": shift,
    "slice": part,
    "hadamard": hadamard,
    "softcap": softcap,
    "softmax": softmax,
    "sinkhorn": sinkhorn,
    "sum": total,
    "temper": temper,
    "top": top,
    "weighted_sum": weighted_sum,
    "whole": whole,
}
