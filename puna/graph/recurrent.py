"""Operations that carry a state from each token of a sequence to the next.

The constant `state` names the memory in which the cache keeps it; each node has one of its own. A step may hold rows of
several sequences, each with its own state, and takes all rows of a sequence in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import cast

from puna.graph.node import Node, Type
from puna.graph.op import Attrs, Op, need

__all__ = ["RECURRENT", "state_shape"]


def conv(types: Sequence[Type], attrs: Attrs) -> Type:
    x, w = types
    need(len(x.shape) == 2 and len(w.shape) > 1, f"wants [T, channels] and weights, got {x}, {w}")
    need(prod(cast("tuple[int, ...]", w.shape[:-1])) == x.shape[1], f"{w} does not fit {x}")
    return Type("f32", x.shape)


def ngrams(types: Sequence[Type], attrs: Attrs) -> Type:
    sizes, starts = (cast("tuple[int, ...]", attrs[name]) for name in ("sizes", "starts"))
    factors = cast("tuple[int, ...]", attrs["factors"])
    need(types[0].dtype == "i32" and len(factors) > 1, f"wants ids and factors, got {types[0]}, {factors}")
    need(len(sizes) == len(starts) and len(sizes) % (len(factors) - 1) == 0, f"{sizes} do not fit {factors}")
    return Type("i32", ("T", len(sizes)))


def scan(types: Sequence[Type], attrs: Attrs) -> Type:
    x, b, c, a = types[:4]
    need(len(x.shape) == len(b.shape) == 3 and b == c, f"wants [T, heads, size], got {x}, {b}, {c}")
    need(len(types) < 5 or types[4].shape == x.shape[:2], f"{types[-1]} does not fit {x}")
    need(cast(int, x.shape[1]) % cast(int, b.shape[1]) == 0, f"heads of {x} do not share groups of {b}")
    need(a.shape in ((x.shape[1], 1), (x.shape[1], b.shape[2])), f"{a} does not fit {x} and {b}")
    return x


def delta(types: Sequence[Type], attrs: Attrs) -> Type:
    q, k, v, decay, beta = types
    need(len(q.shape) == len(v.shape) == 3 and q == k, f"wants [T, heads, size], got {q}, {k}, {v}")
    need(cast(int, v.shape[1]) % cast(int, q.shape[1]) == 0, f"heads of {v} do not share those of {q}")
    need(
        decay.shape in ((*v.shape[:2], 1), (*v.shape[:2], q.shape[2])) and beta.shape == (*v.shape[:2], 1),
        f"{decay} and {beta} do not fit {v}",
    )
    return v


def pool(types: Sequence[Type], attrs: Attrs) -> Type:
    x, scores, offsets, positions = types
    channels, every = cast(int, x.shape[1]), cast(int, attrs["every"])
    need(
        len(x.shape) == 2 and x == scores and positions.dtype == "i32",
        f"wants [T, channels], got {x}, {scores}",
    )
    need(every > 1 and offsets.shape == (every, channels), f"{offsets} do not fit {every} of {x}")
    need(channels % 2 == 0 or not attrs["overlap"], f"{channels} channels have no halves")
    return Type("f32", ("T", channels // 2 if attrs["overlap"] else channels))


def previous(types: Sequence[Type], attrs: Attrs) -> Type:
    need(len(types[0].shape) == 2 and types[0].dtype == "f32", f"wants [T, channels], got {types[0]}")
    return types[0]


def wkv(types: Sequence[Type], attrs: Attrs) -> Type:
    r, k, v, decay, *first = types
    need(
        len(r.shape) == len(v.shape) == 3 and r == k == decay,
        f"wants [T, heads, size], got {r}, {k}, {decay}",
    )
    need(v.shape[:2] == r.shape[:2], f"{v} does not fit {r}")
    need(not first or first[0].shape == r.shape[1:], "wants one weight for each value of a key")
    return v


def wkv7(types: Sequence[Type], attrs: Attrs) -> Type:
    a, b = types[4:]
    need(a == b == types[0], f"{a} and {b} do not fit {types[0]}")
    return wkv(types[:4], attrs)


RECURRENT: Mapping[str, Op] = {
    "conv": Op(
        ("x", "w"),
        ("state", "apart?"),
        conv,
        "each channel convolved with its own weights [channels, n]: sum over j of "
        "w[c, j] * x[t - apart * (n - 1 - j), c]",
    ),
    "scan": Op(
        ("x", "b", "c", "a", "dt?"),
        ("state",),
        scan,
        "selective state space: s = exp(dt * a) * s + dt * outer(x, b), then s @ c, for each head, with the b and c of "
        "its group, and 1 for a missing dt (Gu & Dao 2023, arXiv:2312.00752; with one a for each head Dao & Gu 2024, "
        "arXiv:2405.21060)",
    ),
    "delta": Op(
        ("q", "k", "v", "decay", "beta"),
        ("state", "tiled?"),
        delta,
        "gated delta rule: s = exp(decay) * s, s = s + outer(k, beta * (v - k @ s)), then q @ s, for each head of v; "
        "head h shares q and k with the heads beside it, or where tiled with those h modulo their number is equal for "
        "(Yang et al. 2024, arXiv:2412.06464; with a decay for each value of k, Kimi Team 2025, arXiv:2510.26692)",
    ),
    "ngrams": Op(
        ("ids",),
        ("state", "end", "factors", "sizes", "starts"),
        ngrams,
        "rows of a table for the last 2, 3, ... ids: their products with the factors, combined by exclusive or, modulo "
        "a size, from a start on; equally many for each n; ids up to the last `end` before this one count as that",
    ),
    "pool": Op(
        ("x", "scores", "offsets", "positions"),
        ("state", "every", "overlap"),
        pool,
        "at each `every`-th position the mean of the last `every` x, each channel weighed by the softmax of its scores "
        "plus an offset for each place; where they overlap of twice as many, the first half of the channels of those "
        "before, the second of the last; 0 elsewhere (DeepSeek-AI 2026, DeepSeek-V4)",
    ),
    "previous": Op(("x",), ("state",), previous, "the row before, of the same sequence; zeros for the first"),
    "wkv": Op(
        ("r", "k", "v", "decay", "first?"),
        ("state",),
        wkv,
        "gated linear attention: s = exp(decay) * s + outer(k, v), then r @ s, for each head (Yang et al. 2023, "
        "arXiv:2312.06635); with `first`, r @ (s + outer(first * k, v)) of the s before (Peng et al. 2024, "
        "arXiv:2404.05892)",
    ),
    "wkv7": Op(
        ("r", "k", "v", "decay", "a", "b"),
        ("state",),
        wkv7,
        "s = exp(decay) * s + outer(k, v) + outer(b, a @ s), then r @ s, for each head (Peng et al. 2025, "
        "arXiv:2503.14456)",
    ),
}


def sizes(node: Node) -> tuple[int, ...]:
    """The dimensions of a value after its rows."""
    return cast("tuple[int, ...]", node.type.shape[1:])


def kept(node: Node) -> int:
    """Positions that a pool looks back to."""
    return cast(int, node.attrs["every"]) * (2 if node.attrs["overlap"] else 1)


SHAPES: Mapping[str, Callable[[Node], tuple[int, ...]]] = {
    # The last inputs of each channel.
    "conv": lambda n: ((sizes(n.inputs[1])[-1] - 1) * cast(int, n.attrs.get("apart", 1)), *sizes(n)),
    "ngrams": lambda n: (len(cast("tuple[int, ...]", n.attrs["factors"])) - 1, 1),  # ids + 1, 0 for none
    "scan": lambda n: (*sizes(n), sizes(n.inputs[1])[1]),  # [heads, size of x, size of b]
    # [heads, size of k, size of v]
    **dict.fromkeys(("delta", "wkv", "wkv7"), lambda n: (sizes(n)[0], sizes(n.inputs[1])[1], sizes(n)[1])),
    "pool": lambda n: (
        kept(n),
        2,
        sizes(n.inputs[0])[0],
    ),  # x and scores; a position's place is modulo the first
    "previous": lambda n: (1, *sizes(n)),
}


def state_shape(node: Node) -> tuple[int, ...]:
    """Shape of one sequence's state, f32; () for an operation without one."""
    return SHAPES[node.op](node) if node.op in SHAPES else ()
