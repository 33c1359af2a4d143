"""RWKV's blocks: mixing over time with a matrix-valued state a head, and over channels.

Before each, a token is mixed with the one before it, by learned shares. RWKV 6: Peng et al. 2024, arXiv:2404.05892.
RWKV 7: Peng et al. 2025, arXiv:2503.14456.
"""

from __future__ import annotations

import math
from typing import cast

from puna.graph import Node, make
from puna.models.blocks import heads, linear, split
from puna.models.config import ModelConfig
from puna.models.recurrent import flat
from puna.models.streams import spread
from puna.models.weights import Layer, Parameter

__all__ = ["before", "channel_mix", "head_count", "mixed", "time_mix6", "time_mix7"]

GROUP_EPS = 64e-5  # of the norm of each head
UNIT_EPS = 1e-12
FASTEST = -math.exp(-0.5)  # of RWKV 7's decays


def head_count(c: ModelConfig) -> tuple[int, int]:
    """Heads, and the size of each."""
    size = c.count("wkv.head_size", 0)
    if c.n_embd % size:
        raise c.error("wkv.head_size", f"a width of {c.n_embd} does not divide into heads of {size}")
    return c.n_embd // size, size


def before(x: Node, name: str) -> Node:
    """The token before each, less the token itself: [T, width]. name: of the state."""
    return make("previous", x, state=name) + x * -1.0


def mixed(x: Node, change: Node, p: Parameter) -> Node:
    return x + change * p.weight(x.type.shape[1])


def act(x: Node, kind: str) -> Node:
    return make("act", x, kind=kind)


def through(x: Node, down: Parameter, up: Parameter, rows: int, kind: str = "") -> Node:
    """x [T, k] through two matrices, with an activation between them where there is one: [T, rows]."""
    y = linear(x, down, down.rows)
    return linear(act(y, kind) if kind else y, up, rows)


def group_norm(y: Node, p: Parameter) -> Node:
    """y [T, heads, size], each head normed, as [T, heads * size]."""
    y = flat(make("normalize", y, kind="layer", eps=GROUP_EPS))
    bias = p.bias(y.type.shape[1])
    y = y * p.weight(y.type.shape[1])
    return y + bias if bias else y


def time_mix6(x: Node, l: Layer, *, linear_attention: bool = False) -> Node:
    """RWKV 6 over time, of normed tokens x [T, width]: [T, width].

    linear_attention: what is new counts as what is old, keys and values may be fewer, and there is no norm.
    """
    c, (n, size) = l.config, head_count(l.config)
    xw, xk, xv, xr, xg = shares6(x, before(x, f"{l.time_mix_key.name}.before"), l)
    r, g = (linear(y, p, c.n_embd) for y, p in ((xr, l.time_mix_receptance), (xg, l.time_mix_gate)))
    few = (l.n_head_kv or n) if linear_attention else n
    ways = (xk, l.time_mix_key), (xv, l.time_mix_value)
    k, v = (repeated(heads(linear(y, p, few * size), few, size), n // few) for y, p in ways)
    decay = through(xw, l.time_mix_decay_w1, l.time_mix_decay_w2, c.n_embd, "tanh")
    decay = heads(act(decay + l.time_mix_decay.weight(c.n_embd), "exp") * -1.0, n, size)
    state = l.time_mix_key.name
    if linear_attention:
        k = k + (k * act(decay, "exp")) * -1.0
        y = make("wkv", heads(r * size**-0.5, n, size), k, v, decay, state=state)
        y = act(g, "sigmoid") * flat(y)
    else:
        first = l.time_mix_first.weight(n, size)
        y = make("wkv", heads(r, n, size), k, v, decay, first, state=state)
        y = act(g, "silu") * group_norm(y, l.time_mix_ln)
    return linear(y, l.time_mix_output, c.n_embd)


def shares6(x: Node, change: Node, l: Layer) -> list[Node]:
    """x mixed with the token before in five ways, whose shares come from the mix itself: [T, width] each."""
    width = l.config.n_embd
    y = linear(mixed(x, change, l.time_mix_lerp_x), l.time_mix_w1, l.time_mix_w1.rows)
    inner = l.time_mix_w1.rows // 5
    y = make(
        "linear_heads", heads(act(y, "tanh"), 5, inner), l.time_mix_w2.weight(5, width, inner)
    )  # [T, 5, width]
    if l.time_mix_lerp_fused:
        parts = split(flat(y + l.time_mix_lerp_fused.weight(5, width)), (width,) * 5)
    else:
        shares = (getattr(l, f"time_mix_lerp_{name}").weight(width) for name in "wkvrg")
        parts = [part + share for part, share in zip(split(flat(y), (width,) * 5), shares, strict=True)]
    return [x + part * change for part in parts]


def repeated(x: Node, n: int) -> Node:
    """x [T, heads, size], each head n times: [T, heads * n, size]."""
    _, count, size = cast("tuple[str, int, int]", x.type.shape)
    whole = x
    for _ in range(n - 1):
        whole = make("cat", whole, x)
    return make("reshape", whole, shape=("T", count * n, size))


def time_mix7(x: Node, l: Layer, first: Node | None) -> tuple[Node, Node]:
    """RWKV 7 over time, of normed tokens x [T, width]: [T, width], and the values, or those of the first layer.

    first: values of the first layer, of which the others' have a part.
    """
    c, width, (n, size) = l.config, l.config.n_embd, head_count(l.config)
    count = 6 if l.time_mix_g1 else 5
    change = before(x, f"{l.time_mix_key.name}.before")
    shares = flat(spread(change, count) * l.time_mix_lerp_fused.weight(count, width))
    xr, xw, xk, xv, xa, *xg = (x + part for part in split(shares, (width,) * count))
    r, k, v = (
        linear(y, p, width)
        for y, p in ((xr, l.time_mix_receptance), (xk, l.time_mix_key), (xv, l.time_mix_value))
    )
    decay = through(xw, l.time_mix_w1, l.time_mix_w2, width, "tanh") + l.time_mix_w0.weight(width)
    decay = act(decay, "sigmoid") * FASTEST
    v = own_values(xv, v, l, first)
    rate = act(through(xa, l.time_mix_a1, l.time_mix_a2, width) + l.time_mix_a0.weight(width), "sigmoid")
    unit = make("normalize", heads(k * l.time_mix_k_k.weight(width), n, size), kind="l2", eps=UNIT_EPS)
    part = k * l.time_mix_k_a.weight(width)
    k = k + rate * part + part * -1.0
    r, k, values, decay = (heads(y, n, size) for y in (r, k, v, decay))
    back = unit * heads(rate, n, size)
    y = make("wkv7", r, k, values, decay, unit * -1.0, back, state=l.time_mix_key.name)
    y = group_norm(y, l.time_mix_ln) if l.time_mix_ln else flat(y)
    own = make("sum", heads(flat(k * r) * l.time_mix_r_k.weight(width), n, size))  # [T, heads, 1]
    y = y + flat(values * own)
    if xg:
        y = y * through(xg[0], l.time_mix_g1, l.time_mix_g2, width, "sigmoid")
    return linear(y, l.time_mix_output, c.n_embd), first or v


def own_values(x: Node, v: Node, l: Layer, first: Node | None) -> Node:
    """The values v [T, width] of a layer, moved towards those of the first by learned shares."""
    if first is None:
        for p in (l.time_mix_v0, l.time_mix_v1, l.time_mix_v2):
            p.ignore()
        return v
    width = l.config.n_embd
    share = act(through(x, l.time_mix_v1, l.time_mix_v2, width) + l.time_mix_v0.weight(width), "sigmoid")
    return v + (first + v * -1.0) * share


def channel_mix(x: Node, l: Layer) -> Node:
    """Over channels, of normed tokens x [T, width]; RWKV 6 has a gate: [T, width]."""
    width, change = l.config.n_embd, before(x, f"{l.channel_mix_key.name}.before")
    y = linear(mixed(x, change, l.channel_mix_lerp_k), l.channel_mix_key, l.n_ff)
    y = linear(act(y, "relu2"), l.channel_mix_value, width)
    if not l.channel_mix_receptance:
        return y
    return act(linear(mixed(x, change, l.channel_mix_lerp_r), l.channel_mix_receptance, width), "sigmoid") * y
