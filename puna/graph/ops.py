"""The table of operations: inputs, constants, type rule and meaning of each.

Plain operations are the vocabulary that models are written in. Fused ones are made by passes, and each is defined by
plain ones, so that any backend's fused kernel can be checked against its parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import cast

from puna.graph.attention import ATTENTION
from puna.graph.node import Dim, Type, make
from puna.graph.op import Attrs, Op, SpecError, need
from puna.graph.recurrent import RECURRENT
from puna.graph.rope import Rope

__all__ = ["ACTIVATIONS", "ELEMENTWISE", "NORMS", "OPS", "Op", "SpecError", "hadamard_size"]

# What `act` and `gated` may put a value through.
ACTIVATIONS: Mapping[str, str] = {
    "exp": "exp(x)",
    "gelu_quick": "x * sigmoid(1.702 x)",
    "gelu": "tanh approximation of x * normal CDF(x) (Hendrycks & Gimpel 2016, arXiv:1606.08415)",
    "gelu_erf": "x * normal CDF(x)",
    "relu": "max(x, 0)",
    "relu2": "max(x, 0)**2 (So et al. 2021, arXiv:2109.08668)",
    "sigmoid": "1 / (1 + exp(-x))",
    "signed_root": "sign(x) * sqrt(max(|x|, 1e-6))",
    "silu": "x * sigmoid(x)",
    "softplus": "log(1 + exp(x))",
    "sqrt_softplus": "sqrt(log(1 + exp(x)))",
    "tanh": "tanh(x)",
}
NORMS: Mapping[str, str] = {
    "rms": "x / sqrt(mean(x**2) + eps) (Zhang & Sennrich 2019, arXiv:1910.07467)",
    "layer": "(x - mean(x)) / sqrt(variance(x) + eps) (Ba et al. 2016, arXiv:1607.06450)",
    "l2": "x / max(sqrt(sum(x**2)), eps)",
}


def same(types: Sequence[Type], attrs: Attrs) -> Type:
    need(types[0].dtype == "f32", f"wants f32, got {types[0]}")
    return types[0]


def broadcast(types: Sequence[Type], attrs: Attrs) -> Type:
    a, b = types
    end = a.shape[len(a.shape) - len(b.shape) :]
    need(b.shape in (end, (*end[:-1], 1)), f"{b} does not broadcast to {a}")
    return same(types, attrs)


def leaf(types: Sequence[Type], attrs: Attrs) -> Type:
    return Type(cast(str, attrs["dtype"]), cast("tuple[Dim, ...]", attrs["shape"]))


def constant(types: Sequence[Type], attrs: Attrs) -> Type:
    values, shape = cast("tuple[float, ...]", attrs["values"]), cast("tuple[int, ...]", attrs["shape"])
    need(len(values) == prod(shape), f"{len(values)} values do not fill {shape}")
    return Type("f32", shape)


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


def linear_heads(types: Sequence[Type], attrs: Attrs) -> Type:
    x, w = types
    need(
        len(x.shape) == len(w.shape) == 3 and x.shape[1:] == (w.shape[0], w.shape[2]), f"{x} does not fit {w}"
    )
    return Type("f32", (*x.shape[:2], w.shape[1]))


def add_experts(types: Sequence[Type], attrs: Attrs) -> Type:
    x, b, ids = types
    need(x.shape == (*ids.shape, *b.shape[1:]) and len(b.shape) == 2, f"{b} and {ids} do not fit {x}")
    return same(types, attrs)


def activation(types: Sequence[Type], attrs: Attrs) -> Type:
    need(attrs["kind"] in ACTIVATIONS, f"no such activation: {attrs['kind']}")
    return same(types, attrs)


def normalize(types: Sequence[Type], attrs: Attrs) -> Type:
    need(attrs["kind"] in NORMS, f"no such norm: {attrs['kind']}")
    need(len(types) < 2 or types[1].shape == types[0].shape[-1:], f"{types[-1]} does not fit {types[0]}")
    return same(types, attrs)


def part(types: Sequence[Type], attrs: Attrs) -> Type:
    start, size = cast(int, attrs["start"]), cast(int, attrs["size"])
    need(0 <= start <= start + size <= cast(int, types[0].shape[-1]), f"no part {attrs} of {types[0]}")
    return Type("f32", (*types[0].shape[:-1], size))


def square(types: Sequence[Type], attrs: Attrs) -> Type:
    need(
        len(types[0].shape) == 3 and types[0].shape[1] == types[0].shape[2], f"wants squares, got {types[0]}"
    )
    return same(types, attrs)


def summed(types: Sequence[Type], attrs: Attrs) -> Type:
    return Type("f32", (*types[0].shape[:-1], 1))


def cat(types: Sequence[Type], attrs: Attrs) -> Type:
    a, b = types
    need(len(a.shape) == len(b.shape) == 3 and a.shape[0] == b.shape[0], f"{a} and {b} do not pair")
    need(b.shape[1] in (1, a.shape[1]), f"heads of {b} do not pair with those of {a}")
    return Type("f32", (*a.shape[:-1], cast(int, a.shape[-1]) + cast(int, b.shape[-1])))


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


def top(types: Sequence[Type], attrs: Attrs) -> Type:
    k = cast(int, attrs["k"])
    need(0 < k <= cast(int, types[0].shape[-1]), f"cannot take {k} of {types[0]}")
    return Type("i32", (*types[0].shape[:-1], k))


def whole(types: Sequence[Type], attrs: Attrs) -> Type:
    return Type("i32", same(types, attrs).shape)


def best_groups(types: Sequence[Type], attrs: Attrs) -> Type:
    count, groups = cast(int, types[0].shape[-1]), cast(int, attrs["groups"])
    need(
        count % groups == 0 and 0 < cast(int, attrs["used"]) <= groups, f"cannot choose {attrs} of {types[0]}"
    )
    return same(types, attrs)


def group_of(types: Sequence[Type], attrs: Attrs) -> Type:
    need(
        types[0].dtype == "i32" and cast(int, attrs["size"]) > 0,
        f"wants ids and a size, got {types[0]}, {attrs}",
    )
    return types[0]


def pick(types: Sequence[Type], attrs: Attrs) -> Type:
    return Type("f32", types[1].shape)


def weighted_sum(types: Sequence[Type], attrs: Attrs) -> Type:
    x, w = types[0], types[1].shape if len(types) > 1 else types[0].shape[:2]
    need(len(x.shape) == 3 and w[:1] + w[-1:] == x.shape[:2] and len(w) in (2, 3), f"{w} does not fit {x}")
    return Type("f32", (*w[:-1], x.shape[2]))


def select(types: Sequence[Type], attrs: Attrs) -> Type:
    need(types[0].shape[0] == "T", f"wants rows of a step, got {types[0]}")
    return Type(types[0].dtype, ("R", *types[0].shape[1:]))


def quantized(types: Sequence[Type], attrs: Attrs) -> Type:
    need(
        types[0].dtype == "f32" and cast(int, types[0].shape[-1]) % 32 == 0, f"cannot cut {types[0]} into 32s"
    )
    return Type("q8", types[0].shape)


def rounded(types: Sequence[Type], attrs: Attrs) -> Type:
    need(types[0].dtype == "f32" and cast(int, types[0].shape[-1]) % 2 == 0, f"no pairs in {types[0]}")
    return Type("bf16", types[0].shape)


def gated(types: Sequence[Type], attrs: Attrs) -> Type:
    need(types[0] == types[1], f"{types[0]} is not {types[1]}")
    return activation(types, attrs)


def hadamard_size(width: int) -> int:
    """The longest run of 2**n values that divides a width."""
    return width & -width


OPS: Mapping[str, Op] = {
    **ATTENTION,
    **RECURRENT,
    "tokens": Op((), ("part?",), tokens, "ids of this step's tokens; `part` as in kv_store"),
    "positions": Op((), (), tokens, "positions of this step's tokens in their sequences"),
    "types": Op((), (), tokens, "types of this step's tokens: all of them 0, that of a first sentence"),
    "constant": Op((), ("values", "shape"), constant, "numbers that the architecture itself knows"),
    "weight": Op((), ("tensor", "dtype", "shape"), leaf, "a tensor of the model file"),
    "embed": Op(("table", "ids"), (), embed, "row `ids[t]` of the table, as f32"),
    "linear": Op(("x", "w"), (), linear, "x @ w.T"),
    "linear_experts": Op(
        ("x", "w", "ids"), (), linear_experts, "x[t] @ w[ids[t, e]].T for each chosen expert"
    ),
    "linear_heads": Op(("x", "w"), (), linear_heads, "x[t, h] @ w[h].T for each head"),
    "add_experts": Op(
        ("x", "b", "ids"), (), add_experts, "x[t, e] + b[ids[t, e]], the bias of each chosen expert"
    ),
    "add": Op(
        ("a", "b"), (), broadcast, "a + b; b may lack leading dimensions, or be one value for the last"
    ),
    "mul": Op(("a", "b"), (), broadcast, "a * b, as add"),
    "div": Op(("a", "b"), (), broadcast, "a / b, as add"),
    "scale": Op(("x",), ("by",), same, "x * by"),
    "shift": Op(("x",), ("by",), same, "x + by"),
    "clamp": Op(("x",), ("least", "most"), same, "x no less than `least` and no more than `most`"),
    "normalize": Op(("x",), ("kind", "eps"), normalize, "over the last dimension, as NORMS says of its kind"),
    "act": Op(("x",), ("kind",), activation, "as ACTIVATIONS says of its kind"),
    "slice": Op(("x",), ("start", "size"), part, "`size` values of the last dimension, from `start` on"),
    "cat": Op(("a", "b"), (), cat, "a and then b in the last dimension; b may be one head for all of a"),
    "softmax": Op(("x",), (), same, "softmax over the last dimension"),
    "sum": Op(("x",), (), summed, "sum over the last dimension, which is 1 then"),
    "softcap": Op(("x",), ("cap",), same, "cap * tanh(x / cap)"),
    "hadamard": Op(
        ("x",), (), same, "each run of 2**n values, as long as fit, times H / sqrt(2**n): its own inverse"
    ),
    "share": Op(("x",), (), same, "x / sum(x) over the last dimension; a sum is taken for 2**-14 at least"),
    "best_groups": Op(
        ("x",),
        ("groups", "used"),
        best_groups,
        "the last dimension in equal groups: x, and -inf outside the `used` whose two largest values sum highest",
    ),
    "whole": Op(("x",), (), whole, "x, which are whole numbers, as ids"),
    "top": Op(("x",), ("k",), top, "indices of the k largest of the last dimension, largest first"),
    "group_of": Op(("ids",), ("size",), group_of, "ids // size"),
    "pick": Op(("x", "ids"), (), pick, "x[t, ids[t, e]]"),
    "sinkhorn": Op(
        ("x",),
        ("rounds", "eps"),
        square,
        "w[t, j, i] from scores x[t, i, j]: softmax over j, plus eps, then divided by the sums over i, and in each "
        "further round over j and over i, plus eps (Xie et al. 2025, arXiv:2512.24880)",
    ),
    "weighted_sum": Op(
        ("x", "w?"),
        (),
        weighted_sum,
        "sum over e of x[t, e] * w[t, e], or of x[t, e] * w[t, m, e] for each m; without w, of x[t, e]",
    ),
    "rope": Op(("x", "factors?"), ("rope",), rope, "rotate pairs of values by the token's position"),
    "temper": Op(
        ("x",),
        ("length", "by", "offset?"),
        same,
        "x * (1 + by * log(1 + floor((position + offset) / length)))",
    ),
    "reshape": Op(("x",), ("shape",), reshape, "the same values under another shape"),
    "select": Op(("x",), (), select, "the rows whose logits are asked for"),
    "quantize": Op(
        ("x",),
        (),
        quantized,
        "x rounded to 8 bits in spans of 32: what byte dots take; a backend without them keeps x",
        lambda n: n.inputs[0],
    ),
    "round": Op(
        ("x",),
        (),
        rounded,
        "x rounded to bf16: what dots of pairs of these take; a backend without them keeps x",
        lambda n: n.inputs[0],
    ),
    "norm": Op(
        ("x", "w"),
        ("kind", "eps"),
        normalize,
        "normalize(x) * w",
        lambda n: make("normalize", n.inputs[0], **n.attrs) * n.inputs[1],
    ),
    "gated": Op(
        ("gate", "up"),
        ("kind",),
        gated,
        "act(gate) * up",
        lambda n: make("act", n.inputs[0], **n.attrs) * n.inputs[1],
    ),
}

# Operations whose result may take the place of their first operand.
ELEMENTWISE = frozenset(
    {
        "act",
        "add",
        "add_experts",
        "clamp",
        "div",
        "mul",
        "scale",
        "softcap",
        "gated",
        "norm",
        "normalize",
        "softmax",
        "share",
        "shift",
        "temper",
        "rope",
    }
)
