"""One NumPy function an operation: `kernel(step, node, out, *operands)` fills `out`.

`out` may be the memory of the first operand where the plan says that an operation may overwrite it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.reference.attention import attend, kv_store
from puna.backends.reference.step import Step
from puna.graph import Node, Rope
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


def add(step: Step, node: Node, out: Array, a: Array, b: Array) -> None:
    np.add(a, b, out=out)


def mul(step: Step, node: Node, out: Array, a: Array, b: Array) -> None:
    np.multiply(a, b, out=out)


def scale(step: Step, node: Node, out: Array, x: Array) -> None:
    np.multiply(x, np.float32(cast(float, node.attrs["by"])), out=out)


def rms_norm(step: Step, node: Node, out: Array, x: Array) -> None:
    eps = np.float32(cast(float, node.attrs["eps"]))
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    np.multiply(x, 1 / np.sqrt(mean + eps), out=out)


def norm(step: Step, node: Node, out: Array, x: Array, w: Array) -> None:
    rms_norm(step, node, out, x)
    out *= w


def silu(step: Step, node: Node, out: Array, x: Array) -> None:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right 0
        np.divide(x, 1 + np.exp(-x), out=out)


def gelu(step: Step, node: Node, out: Array, x: Array) -> None:
    # Hendrycks & Gimpel 2016, arXiv:1606.08415: the tanh form.
    inner = np.float32(0.79788456080286535588) * x * (1 + np.float32(0.044715) * np.square(x))
    np.multiply(np.float32(0.5) * x, 1 + np.tanh(inner), out=out)


def gated(step: Step, node: Node, out: Array, gate: Array, up: Array) -> None:
    # `out` may be `up`, so the activation needs memory of its own.
    act = np.empty_like(gate)
    KERNELS[cast(str, node.attrs["act"])](step, node, act, gate)
    np.multiply(act, up, out=out)


def softmax(step: Step, node: Node, out: Array, x: Array) -> None:
    np.exp(x - x.max(axis=-1, keepdims=True), out=out)
    out /= out.sum(axis=-1, keepdims=True)


def softcap(step: Step, node: Node, out: Array, x: Array) -> None:
    cap = np.float32(cast(float, node.attrs["cap"]))
    np.multiply(np.tanh(x / cap), cap, out=out)


def share(step: Step, node: Node, out: Array, x: Array) -> None:
    np.divide(x, x.sum(axis=-1, keepdims=True), out=out)


def top(step: Step, node: Node, out: Array, x: Array) -> None:
    out[:] = np.argsort(-x, axis=-1, kind="stable")[..., : out.shape[-1]]


def pick(step: Step, node: Node, out: Array, x: Array, ids: Array) -> None:
    out[:] = np.take_along_axis(x, ids, axis=-1)


def weighted_sum(step: Step, node: Node, out: Array, x: Array, w: Array) -> None:
    np.sum(x * w[..., None], axis=1, out=out)


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
    factor = 1.0 + by * np.log1p(np.floor(step.batch.positions / length))
    np.multiply(x, factor.astype(np.float32)[:, None, None], out=out)


KERNELS: Mapping[str, Kernel] = {
    "add": add,
    "attend": attend,
    "embed": embed,
    "gated": gated,
    "gelu": gelu,
    "kv_store": kv_store,
    "linear": linear,
    "linear_experts": linear_experts,
    "mul": mul,
    "norm": norm,
    "pick": pick,
    "rms_norm": rms_norm,
    "rope": rope,
    "scale": scale,
    "select": select,
    "share": share,
    "silu": silu,
    "softcap": softcap,
    "softmax": softmax,
    "temper": temper,
    "top": top,
    "weighted_sum": weighted_sum,
}
