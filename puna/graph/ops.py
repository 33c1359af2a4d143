"""The table of operations: inputs, constants, type rule and meaning of each.

Plain operations are the vocabulary that models are written in. Fused ones are made by passes, and each is defined by
plain ones, so that any backend's fused kernel can be checked against its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from puna.graph.node import Dim, Node, Type, make
from puna.graph.rope import Rope

__all__ = ["ELEMENTWISE", "OPS", "Op", "SpecError"]

Attrs = Mapping[str, object]
Rule = Callable[[Sequence[Type], Attrs], Type]


class SpecError(Exception):
    """A graph that breaks its own rules: a fault in a model file or a pass, not in what a user gave."""


@dataclass(frozen=True)
class Op:
    """One row of the table.

    inputs: names of the operands; a name ending in "?" may be left out.
    attrs: names of the constants.
    rule: operand types and constants -> type of the result; raises SpecError.
    meaning: one line.
    definition: for a fused operation, the same in plain ones.
    """

    inputs: tuple[str, ...]
    attrs: tuple[str, ...]
    rule: Rule
    meaning: str
    definition: Callable[[Node], Node] | None = None

    def infer(self, types: Sequence[Type], attrs: Attrs) -> Type:
        """Type of the result. Raises SpecError when operands or constants do not fit."""
        least = sum(not name.endswith("?") for name in self.inputs)
        need(least <= len(types) <= len(self.inputs), f"takes {self.inputs}, got {len(types)} operands")
        need(set(attrs) == set(self.attrs), f"takes constants {self.attrs}, got {tuple(attrs)}")
        return self.rule(types, attrs)


def need(condition: bool, message: str) -> None:
    if not condition:
        raise SpecError(message)


def same(types: Sequence[Type], attrs: Attrs) -> Type:
    need(types[0].dtype == "f32", f"wants f32, got {types[0]}")
    return types[0]


def broadcast(types: Sequence[Type], attrs: Attrs) -> Type:
    a, b = types
    need(b.shape == a.shape[len(a.shape) - len(b.shape) :], f"{b} does not broadcast to {a}")
    return same(types, attrs)


def leaf(types: Sequence[Type], attrs: Attrs) -> Type:
    return Type(cast(str, attrs["dtype"]), cast("tuple[Dim, ...]", attrs["shape"]))


def tokens(types: Sequence[Type], attrs: Attrs) -> Type:
    return Type("i32", ("T",))


def embed(types: Sequence[Type], attrs: Attrs) -> Type:
    table, ids = types
    need(len(table.shape) == 2 and ids.dtype == "i32", f"wants a table and ids, got {table}, {ids}")
    return Type("f32", (*ids.shape, table.shape[1]))


def linear(types: Sequence[Type], attrs: Attrs) -> Type:
    x, w = types
    need(len(w.shape) == 2 and x.shape[-1] == w.shape[1], f"{x} does not fit {w}")
    return Type("f32", (*x.shape[:-1], w.shape[0]))


def linear_experts(types: Sequence[Type], attrs: Attrs) -> Type:
    x, w, ids = types
    need(len(w.shape) == 3 and x.shape[-1] == w.shape[2], f"{x} does not fit {w}")
    need(x.shape[0] == ids.shape[0] and x.shape[1:-1] in ((), ids.shape[1:]), f"{x} does not fit {ids}")
    return Type("f32", (*ids.shape, w.shape[1]))


def norm(types: Sequence[Type], attrs: Attrs) -> Type:
    x, w = types
    need(w.shape == x.shape[-1:], f"{w} does not fit {x}")
    return same(types, attrs)


def rope(types: Sequence[Type], attrs: Attrs) -> Type:
    x, dims = types[0], cast(Rope, attrs["rope"]).dims
    need(len(x.shape) == 3, f"wants [T, heads, size], got {x}")
    need(dims % 2 == 0 and dims <= cast(int, x.shape[2]), f"cannot rotate {dims} of {x.shape[2]} values")
    need(len(types) < 2 or types[1].shape == (dims // 2,), "wants one factor a pair")
    return same(types, attrs)


def reshape(types: Sequence[Type], attrs: Attrs) -> Type:
    shape = cast("tuple[Dim, ...]", attrs["shape"])
    out = Type(types[0].dtype, shape)
    need(
        out.count(1, 1) == types[0].count(1, 1) and out.shape[0] == types[0].shape[0], f"{types[0]} to {out}"
    )
    return out


def kv_store(types: Sequence[Type], attrs: Attrs) -> Type:
    k, v = types
    need(len(k.shape) == len(v.shape) == 3 and k.shape[:2] == v.shape[:2], f"{k} and {v} do not pair")
    return Type("kv", (k.shape[1], k.shape[2], v.shape[2]))


def attend(types: Sequence[Type], attrs: Attrs) -> Type:
    q, kv = types[:2]
    heads, kv_heads = cast(int, q.shape[1]), cast(int, kv.shape[0])
    need(kv.dtype == "kv" and q.shape[2] == kv.shape[1], f"{q} does not fit {kv}")
    need(heads % kv_heads == 0, f"{heads} heads do not share {kv_heads} key/value heads evenly")
    need(len(types) < 3 or types[2].shape == (heads,), "wants one sink a head")
    return Type("f32", (q.shape[0], heads, kv.shape[2]))


def top(types: Sequence[Type], attrs: Attrs) -> Type:
    k = cast(int, attrs["k"])
    need(0 < k <= cast(int, types[0].shape[-1]), f"cannot take {k} of {types[0]}")
    return Type("i32", (*types[0].shape[:-1], k))


def pick(types: Sequence[Type], attrs: Attrs) -> Type:
    return Type("f32", types[1].shape)


def weighted_sum(types: Sequence[Type], attrs: Attrs) -> Type:
    x, w = types
    need(x.shape[:2] == w.shape, f"{w} does not fit {x}")
    return Type("f32", (x.shape[0], *x.shape[2:]))


def select(types: Sequence[Type], attrs: Attrs) -> Type:
    need(types[0].shape[0] == "T", f"wants rows of a step, got {types[0]}")
    return Type(types[0].dtype, ("R", *types[0].shape[1:]))


def quantized(types: Sequence[Type], attrs: Attrs) -> Type:
    need(
        types[0].dtype == "f32" and cast(int, types[0].shape[-1]) % 32 == 0, f"cannot cut {types[0]} into 32s"
    )
    return Type("q8", types[0].shape)


def gated(types: Sequence[Type], attrs: Attrs) -> Type:
    need(types[0] == types[1], f"{types[0]} is not {types[1]}")
    need(attrs["act"] in {"silu", "gelu"}, f"no such gate: {attrs['act']}")
    return same(types, attrs)


OPS: Mapping[str, Op] = {
    "tokens": Op((), (), tokens, "ids of this step's tokens"),
    "weight": Op((), ("tensor", "dtype", "shape"), leaf, "a tensor of the model file"),
    "embed": Op(("table", "ids"), (), embed, "row `ids[t]` of the table, as f32"),
    "linear": Op(("x", "w"), (), linear, "x @ w.T"),
    "linear_experts": Op(
        ("x", "w", "ids"), (), linear_experts, "x[t] @ w[ids[t, e]].T for each chosen expert"
    ),
    "add": Op(("a", "b"), (), broadcast, "a + b; b may lack leading dimensions"),
    "mul": Op(("a", "b"), (), broadcast, "a * b; b may lack leading dimensions"),
    "scale": Op(("x",), ("by",), same, "x * by"),
    "rms_norm": Op(("x",), ("eps",), same, "x / sqrt(mean(x**2) + eps) over the last dimension"),
    "silu": Op(("x",), (), same, "x * sigmoid(x)"),
    "gelu": Op(("x",), (), same, "tanh approximation of x * normal CDF(x)"),
    "softmax": Op(("x",), (), same, "softmax over the last dimension"),
    "softcap": Op(("x",), ("cap",), same, "cap * tanh(x / cap)"),
    "share": Op(("x",), (), same, "x / sum(x) over the last dimension"),
    "top": Op(("x",), ("k",), top, "indices of the k largest of the last dimension, largest first"),
    "pick": Op(("x", "ids"), (), pick, "x[t, ids[t, e]]"),
    "weighted_sum": Op(("x", "w"), (), weighted_sum, "sum over e of x[t, e] * w[t, e]"),
    "rope": Op(("x", "factors?"), ("rope",), rope, "rotate pairs of values by the token's position"),
    "temper": Op(("x",), ("length", "by"), same, "x * (1 + by * log(1 + floor(position / length)))"),
    "reshape": Op(("x",), ("shape",), reshape, "the same values under another shape"),
    "kv_store": Op(
        ("k", "v"), ("layer",), kv_store, "append this step's keys and values to the cache of a layer"
    ),
    "attend": Op(
        ("q", "kv", "sinks?"),
        ("scale", "window", "softcap", "alibi"),
        attend,
        "causal attention over the cached keys; a sink is a score of its head without a value",
    ),
    "select": Op(("x",), (), select, "the rows whose logits are asked for"),
    "quantize": Op(
        ("x",),
        (),
        quantized,
        "x rounded to 8 bits in spans of 32: what byte dots take; a backend without them keeps x",
        lambda n: n.inputs[0],
    ),
    "norm": Op(
        ("x", "w"),
        ("eps",),
        norm,
        "rms_norm(x) * w",
        lambda n: make("rms_norm", n.inputs[0], **n.attrs) * n.inputs[1],
    ),
    "gated": Op(
        ("gate", "up"),
        ("act",),
        gated,
        "act(gate) * up",
        lambda n: make(cast(str, n.attrs["act"]), n.inputs[0]) * n.inputs[1],
    ),
}

# Operations whose result may take the place of their first operand.
ELEMENTWISE = frozenset(
    {
        "add",
        "mul",
        "scale",
        "silu",
        "gelu",
        "softcap",
        "gated",
        "norm",
        "rms_norm",
        "softmax",
        "share",
        "temper",
        "rope",
    }
)
