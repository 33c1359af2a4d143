"""Linear attention by the delta rule: a state of keys and values that each token corrects.

Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464) has one decay for a head, Kimi Delta Attention (Kimi Team 2025,
arXiv:2510.26692) one for each value of a key.
"""

from __future__ import annotations

import math
from typing import cast

from puna.graph import Node, make
from puna.models.blocks import heads, linear, norm, split
from puna.models.recurrent import StateSpace, flat, own_bias, short_conv, silu, taps
from puna.models.weights import Layer, Parameter

__all__ = ["delta_rule", "gated_delta_net", "kimi_delta_attention", "projected"]


def unit(x: Node, l: Layer, eps: float) -> Node:
    """Each head of x [T, heads, size] at a length of 1.

    eps: added below the root; with 0, a length counts as the model's epsilon at least.
    """
    size = cast(int, x.type.shape[2])
    if not eps:
        return make("normalize", x, kind="l2", eps=l.config.norm_eps)
    return make("normalize", x, kind="rms", eps=eps / size) * (1.0 / math.sqrt(size))


def delta_rule(
    q: Node, k: Node, v: Node, decay: Node, beta: Node, l: Layer, *, tiled: bool = False, eps: float = 0.0
) -> Node:
    """What queries find in the state, [T, heads, size of v]; q and k are brought to a length of 1.

    decay: [T, heads of v, 1 or size of k].  beta: [T, heads of v], before its sigmoid.
    tiled: heads of v take those of q and k in turn; else those side by side share.
    eps: as `unit`.
    """
    beta = heads(make("act", beta, kind="sigmoid"), cast(int, v.type.shape[1]), 1)
    q = unit(q, l, eps) * (1.0 / math.sqrt(cast(int, q.type.shape[2])))
    return make("delta", q, unit(k, l, eps), v, decay, beta, state=l.ssm_a.name, tiled=tiled)


def gated_delta_net(
    qkv: Node,
    z: Node,
    alpha: Node,
    beta: Node,
    l: Layer,
    s: StateSpace,
    *,
    tiled: bool,
    gate: str = "silu",
    eps: float = 0.0,
) -> Node:
    """Gated DeltaNet of projected inputs: [T, width].

    qkv: [T, 2 * groups * size + inner].  z: [T, inner], the gate before its activation.  alpha, beta: [T, heads].
    eps: as `unit`.
    """
    size, shared = s.head(l.config), s.groups * s.size
    qkv = silu(short_conv(qkv, l.ssm_conv1d, s.kernel))
    q, k, v = split(qkv, (shared, shared, s.inner))
    q, k, v = heads(q, s.groups, s.size), heads(k, s.groups, s.size), heads(v, s.rank, size)
    decay = make("act", own_bias(alpha, l.ssm_dt), kind="softplus") * l.ssm_a.weight(s.rank)  # [T, heads]
    y = delta_rule(q, k, v, heads(decay, s.rank, 1), beta, l, tiled=tiled, eps=eps)
    y = make("act", heads(z, s.rank, size), kind=gate) * norm(y, l.ssm_norm)
    return linear(flat(y), l.ssm_out, l.config.n_embd)


def kimi_delta_attention(x: Node, l: Layer, gate: Node, decay: Node, *, eps: float = 0.0) -> Node:
    """Kimi Delta Attention of x [T, width], where each of q, k and v has a convolution of its own: [T, width].

    gate: [T, heads * size], before its sigmoid.  decay: [T, heads, size].  eps: as `unit`.
    """
    c = l.config
    _, n, size = cast("tuple[str, int, int]", decay.type.shape)
    kernel = taps(c, "ssm.conv_kernel")
    ways = (l.attn_q, l.ssm_conv1d_q), (l.attn_k, l.ssm_conv1d_k), (l.attn_v, l.ssm_conv1d_v)
    q, k, v = (heads(silu(short_conv(projected(x, p, n * size), w, kernel)), n, size) for p, w in ways)
    y = delta_rule(q, k, v, decay, projected(x, l.ssm_beta, n), l, eps=eps)
    y = make("act", heads(gate, n, size), kind="sigmoid") * norm(y, l.ssm_norm)
    return linear(flat(y), l.attn_output, c.n_embd)


def projected(x: Node, p: Parameter, rows: int) -> Node:
    """x [T, k] through a matrix alone: [T, rows]. A bias that the file may hold has no effect."""
    bias = f"{p.name}.bias"
    p.weights.known |= {bias}
    return make("linear", x, p.weight(rows, x.type.shape[-1]))
