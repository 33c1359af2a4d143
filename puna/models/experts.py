"""Mixtures of experts: a router chooses, for each token, the few feed-forward blocks that it passes through."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from puna.graph import Node, make
from puna.models.blocks import linear, split
from puna.models.mixture import Gating, Mixture
from puna.models.weights import Layer, Parameter

__all__ = [
    "Combine",
    "experts",
    "gated",
    "hashed",
    "leave_out_dense",
    "mixture",
    "oai",
    "route",
    "routed",
    "shared",
]

# From the gate's values and the others to what goes into the last matrix.
Combine = Callable[..., Node]


def gated(act: str, limit: float = 0.0) -> Combine:
    """act(gate) * up; with a limit, gate is no more than that, and up between that and its negative."""

    def combine(gate: Node, up: Node) -> Node:
        return make("act", cut(gate, -math.inf, limit), kind=act) * cut(up, -limit, limit)

    return combine


def oai(gate: Node, up: Node) -> Node:
    """gate * sigmoid(1.702 gate) * (up + 1), both limited to 7: the activation of gpt-oss."""
    gate = make("act", cut(gate, -math.inf, 7.0), kind="gelu_quick")
    return gate * make("shift", cut(up, -7.0, 7.0), by=1.0)


def cut(x: Node, least: float, most: float) -> Node:
    return make("clamp", x, least=least, most=most) if most else x


def experts(
    x: Node,
    l: Layer,
    act: str | Combine = "silu",
    *,
    gating: Gating = "softmax",
    normed: bool = True,
    early: bool = False,
    scores: Node | None = None,
    ids: Node | None = None,
) -> Node:
    """What the chosen experts make of x [T, width], and the shared one where there is one: [T, width].

    act: the activation of a gate, or how gate and up are combined.
    gating, normed: how the weights are made, where the file does not tell.
    early: the weights scale what goes into the experts, not what comes out.
    scores: the router's [T, experts], where it reads something other than x.
    ids: the chosen [T, used], where it is not the router that chooses.
    """
    m = mixture(l)
    scores = linear(x, l.ffn_gate_inp, m.count) if scores is None else scores
    ids, weights = route(scores, l, gating, normed, ids)
    combine = gated(act, m.limit[l.index]) if isinstance(act, str) else act
    y = routed(x, ids, weights, l, combine, early=early)
    if not l.ffn_up_shexp:
        return y
    return y + shared(x, l, gated(act, m.limit_shared[l.index]) if isinstance(act, str) else act)


def leave_out_dense(l: Layer) -> None:
    """For models whose files may hold a dense block beside a layer's experts, which has no effect."""
    for p in (l.ffn_gate, l.ffn_up, l.ffn_down) if l.ffn_gate_inp else ():
        p.ignore()


def mixture(l: Layer) -> Mixture:
    if l.config.moe is None:
        raise l.config.error("expert_count", "there are tensors of experts, and this key says none")
    return l.config.moe


GATES: Mapping[Gating, Callable[[Node], Node]] = {
    "late": lambda scores: scores,
    "sigmoid": lambda scores: make("act", scores, kind="sigmoid"),
    "softmax": lambda scores: make("softmax", scores),
    "sqrt_softplus": lambda scores: make("act", scores, kind="sqrt_softplus"),
}


def route(scores: Node, l: Layer, gating: Gating, normed: bool, ids: Node | None = None) -> tuple[Node, Node]:
    """The experts that a router's scores [T, experts] choose, or else `ids`, and their weights: [T, used] each.

    A bias for each expert, where the file has one, counts for the choice alone (Wang et al. 2024, arXiv:2408.15664).
    """
    m = mixture(l)
    gating, normed = m.gating or gating, normed if m.normed is None else m.normed
    gates = GATES[gating](scores)
    ids = chosen(scores, gates, l) if ids is None else ids
    weights = make("pick", gates, ids)
    if gating == "late":
        weights = make("softmax", weights)
    if normed:
        weights = make("share", weights)
    return ids, weights if m.scale == 1.0 else weights * m.scale


def chosen(scores: Node, gates: Node, l: Layer) -> Node:
    """The experts of the largest gates, each with its bias: [T, used]."""
    # All gates keep the order of scores, but some reach their limit early.
    m = mixture(l)
    choice, bias = scores, choice_bias(l, m.count)
    if bias or m.groups:
        choice = gates + bias if bias else gates
    if m.groups:
        choice = make("best_groups", choice, groups=m.groups, used=m.groups_used)
    return make("top", choice, k=m.used)


def hashed(l: Layer) -> Node:
    """The experts that a table of the file has for each token: [T, used]."""
    m = mixture(l)
    ids = make("embed", l.ffn_gate_tid2eid.weight(None, m.used), make("tokens"))
    return make("whole", make("clamp", ids, least=0.0, most=m.count - 1.0))


def choice_bias(l: Layer, count: int) -> Node | None:
    p = l.exp_probs_b
    return p.weight(count) if p else p.bias(count)


def routed(
    x: Node,
    ids: Node,
    weights: Node,
    l: Layer,
    combine: Combine,
    *,
    early: bool = False,
    kind: str = "exps",
    count: int = 0,
    reading: Sequence[str] = ("gate", "up"),
) -> Node:
    """The weighted sum of what the experts `ids` [T, used] make of x [T, width]: [T, width].

    kind: how the names of their tensors end.  count: of experts, 0 for the mixture's own.
    reading: names of the matrices that read x.
    """
    m = mixture(l)
    count = count or m.count
    down, both = (getattr(l, f"ffn_{part}_{kind}") for part in ("down", "gate_up"))
    inner = (m.n_ff[l.index] if kind == "exps" else 0) or (down.shape[-1] if down else l.n_ff)

    def through(y: Node, p: Parameter, rows: int) -> Node:
        """y [T, k], or [T, used, k], through each chosen expert's matrix and bias: [T, used, rows]."""
        y = make("linear_experts", y, p.weight(count, rows, y.type.shape[-1]), ids)
        bias = p.bias(count, rows)
        return make("add_experts", y, bias, ids) if bias else y

    if both:
        parts = split(through(x, both, 2 * inner), (inner, inner))  # [T, used, inner] each
    else:
        parts = [through(x, getattr(l, f"ffn_{part}_{kind}"), inner) for part in reading]
    if early:  # the matrices are linear, so what comes out may be scaled in place of x
        scales = make("reshape", weights, shape=(*weights.type.shape, 1))
        parts = [part * scales for part in parts]
    y = through(combine(*parts), down, cast(int, x.type.shape[-1]))  # [T, used, width]
    return make("weighted_sum", y) if early else make("weighted_sum", y, weights)


def shared(x: Node, l: Layer, combine: Combine) -> Node:
    """The expert that every token passes through, times its gate where it has one: [T, width]."""
    width = l.ffn_up_shexp.rows
    y = combine(linear(x, l.ffn_gate_shexp, width), linear(x, l.ffn_up_shexp, width))
    y = linear(y, l.ffn_down_shexp, l.config.n_embd)
    if not l.ffn_gate_inp_shexp:
        return y
    return y * make("act", linear(x, l.ffn_gate_inp_shexp, 1), kind="sigmoid")  # [T, 1]
