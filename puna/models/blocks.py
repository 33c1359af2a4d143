"""The blocks that architectures are built from. T: tokens of the step, width: config.n_embd."""

from __future__ import annotations

import math

from puna.errors import ModelError
from puna.graph import Node, Rope, make
from puna.models.weights import Layer, Parameter, Weights

__all__ = ["attention", "experts", "feed_forward", "head", "linear", "norm"]


def linear(x: Node, p: Parameter, rows: int) -> Node:
    """x [.., k] through the matrix [rows, k] and its bias, if it has one: [.., rows]."""
    y = make("linear", x, p.weight(rows, x.type.shape[-1]))  # [.., rows]
    bias = p.bias(rows)
    return y + bias if bias else y


def norm(x: Node, p: Parameter, eps: float) -> Node:
    """Root mean square norm over the last dimension (Zhang & Sennrich 2019), times the weight."""
    return make("rms_norm", x, eps=eps) * p.weight(x.type.shape[-1])


def attention(x: Node, l: Layer, rope: Rope, *, scale: float = 0.0, factors: Node | None = None) -> Node:
    """Grouped-query attention of x [T, width]: q/k norms where the file has them, RoPE, cache, output.

    scale: on the scores; 0 means the configuration's, or 1 / sqrt(key size).
    factors: one divisor of the frequency for each rotated pair.
    """
    c = l.config
    rotated = (factors,) if factors else ()
    q = heads(linear(x, l.attn_q, l.n_head * c.head_k), l.n_head, c.head_k)  # [T, n_head, head_k]
    k = heads(linear(x, l.attn_k, l.n_head_kv * c.head_k), l.n_head_kv, c.head_k)  # [T, n_head_kv, head_k]
    v = heads(linear(x, l.attn_v, l.n_head_kv * c.head_v), l.n_head_kv, c.head_v)  # [T, n_head_kv, head_v]
    if l.attn_q_norm:
        q, k = norm(q, l.attn_q_norm, c.norm_eps), norm(k, l.attn_k_norm, c.norm_eps)
    q, k = make("rope", q, *rotated, rope=rope), make("rope", k, *rotated, rope=rope)
    if c.temper_scale:
        q = make("temper", q, length=c.yarn.context if c.yarn else c.n_ctx_train, by=c.temper_scale)
    kv = make("kv_store", k, v, layer=l.index)
    scale = scale or c.scale or 1.0 / math.sqrt(c.head_k)
    y = make(
        "attend", q, kv, scale=scale, window=l.window, softcap=c.softcap, alibi=0.0
    )  # [T, n_head, head_v]
    y = make("reshape", y, shape=("T", l.n_head * c.head_v))
    return linear(y, l.attn_output, c.n_embd)  # [T, width]


def heads(x: Node, n: int, size: int) -> Node:
    return make("reshape", x, shape=("T", n, size))


def feed_forward(x: Node, l: Layer, act: str = "silu") -> Node:
    """act(x @ gate) * (x @ up) @ down (Shazeer 2020, arXiv:2002.05202): [T, width]."""
    gate = make(act, linear(x, l.ffn_gate, l.n_ff))  # [T, n_ff]
    return linear(gate * linear(x, l.ffn_up, l.n_ff), l.ffn_down, l.config.n_embd)


def experts(x: Node, l: Layer, act: str = "silu") -> Node:
    """The likeliest n_expert_used experts of each token, weighted by their share of the softmax: [T, width]."""
    c = l.config
    if not 0 < c.n_expert_used <= c.n_expert:
        raise ModelError(
            f"metadata key '{c.architecture}.expert_used_count': cannot use {c.n_expert_used} of {c.n_expert} experts",
            where=l.weights.path,
        )
    n_ff = l.n_ff
    router = make("softmax", linear(x, l.ffn_gate_inp, c.n_expert))  # [T, n_expert]
    ids = make("top", router, k=c.n_expert_used)  # [T, used]
    shares = make("share", make("pick", router, ids))
    gate = make(
        "linear_experts", x, l.ffn_gate_exps.weight(c.n_expert, n_ff, c.n_embd), ids
    )  # [T, used, n_ff]
    up = make("linear_experts", x, l.ffn_up_exps.weight(c.n_expert, n_ff, c.n_embd), ids)
    down = l.ffn_down_exps.weight(c.n_expert, c.n_embd, n_ff)
    y = make("linear_experts", make(act, gate) * up, down, ids)  # [T, used, width]
    return make("weighted_sum", y, shares)


def head(x: Node, w: Weights, eps: float) -> Node:
    """Norm and output matrix, or the embedding again where the file ties them: logits [R, vocabulary]."""
    x = norm(make("select", x), w.output_norm, eps)  # [R, width]
    return linear(x, w.output or w.token_embd, w.token_embd.rows)
