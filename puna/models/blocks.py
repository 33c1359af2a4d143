"""The blocks that architectures are built from. T: tokens of the step, width: config.n_embd."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from puna.errors import ModelError
from puna.graph import Node, Rope, make
from puna.models.config import ModelConfig
from puna.models.weights import Layer, Parameter, Weights

__all__ = [
    "apply_gate",
    "attend",
    "attend_to",
    "attention",
    "feed_forward",
    "head_norm",
    "heads",
    "learned_positions",
    "linear",
    "mlp",
    "norm",
    "normalize",
    "project",
    "rope_factors",
    "rotate",
    "rotate_end",
    "split",
    "token_types",
]


def linear(x: Node, p: Parameter, rows: int) -> Node:
    """x [.., k] through the matrix [rows, k] and its bias, if it has one: [.., rows]."""
    y = make("linear", x, p.weight(rows, x.type.shape[-1]))  # [.., rows]
    bias = p.bias(rows)
    return y + bias if bias else y


def normalize(x: Node, c: ModelConfig) -> Node:
    """The model's norm over the last dimension, without weights."""
    return make("normalize", x, kind=c.norm, eps=c.norm_eps)


def norm(x: Node, p: Parameter) -> Node:
    """The model's norm over the last dimension, times the weight, plus the bias where there is one."""
    y = normalize(x, p.config) * p.weight(x.type.shape[-1])
    bias = p.bias(x.type.shape[-1])
    return y + bias if bias else y


def split(x: Node, sizes: Sequence[int]) -> list[Node]:
    """The last dimension cut into parts of these sizes."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [make("slice", x, start=start, size=size) for start, size in zip(starts, sizes, strict=True)]


def heads(x: Node, n: int, size: int) -> Node:
    return make("reshape", x, shape=("T", n, size))


def project(x: Node, l: Layer, *, qk_norm: bool = False) -> list[Node]:
    """Queries, keys and values of x [T, width], each [T, its heads, size].

    From one matrix or three, as the file has them; limited to config.clamp. qk_norm: as `head_norm`.
    """
    c = l.config
    shapes = [(l.n_head, l.head_k), (l.n_head_kv, l.head_k), (l.n_head_kv, l.head_v)]
    sizes = [n * size for n, size in shapes]
    if l.attn_qkv:
        # Qwen 1 has as many rows for keys and for values as for queries, used or not.
        rows = max(sum(sizes), 3 * sizes[0] if l.attn_qkv.rows == 3 * sizes[0] else 0)
        parts = split(limited(linear(x, l.attn_qkv, rows), c), sizes)
    else:
        ways = zip((l.attn_q, l.attn_k, l.attn_v), sizes, strict=True)
        parts = [limited(linear(x, p, size), c) for p, size in ways]
    q, k, v = (heads(part, *shape) for part, shape in zip(parts, shapes, strict=True))
    return [head_norm(q, l.attn_q_norm), head_norm(k, l.attn_k_norm), v] if qk_norm else [q, k, v]


def limited(x: Node, c: ModelConfig) -> Node:
    return make("clamp", x, least=-c.clamp, most=c.clamp) if c.clamp else x


def head_norm(x: Node, p: Parameter) -> Node:
    """Norm of x [T, heads, size]: of each head, with weights of its own or shared; or of all heads as one row."""
    _, n, size = cast("tuple[str, int, int]", x.type.shape)
    if p.shape == (n, size):
        return normalize(x, p.config) * p.weight(n, size)
    if p.shape == (n * size,):
        return heads(norm(make("reshape", x, shape=("T", n * size)), p), n, size)
    return norm(x, p)


def rope_factors(l: Layer) -> Node | None:
    """One divisor of the frequency for each rotated pair, where the file has them.

    Llama 3's, or LongRoPE's (Ding et al. 2024, arXiv:2402.13753): short ones up to the context that the model was
    first trained on, long ones for a longer one.
    """
    w, c = l.weights, l.config
    if w.rope_freqs:
        return w.rope_freqs.weight(c.rope_dims // 2)
    short, long = w.rope_factors_short, w.rope_factors_long
    if not short and not long:
        return None
    chosen, other = (long, short) if c.n_ctx > c.rope_context else (short, long)
    other.ignore()
    return chosen.weight(c.rope_dims // 2)


def rotate(x: Node, rope: Rope | None, factors: Node | None = None) -> Node:
    return make("rope", x, *((factors,) if factors else ()), rope=rope) if rope else x


def rotate_end(x: Node, rope: Rope) -> Node:
    """x [T, heads, size], of whose heads the end is rotated, not the beginning."""
    plain, turned = split(x, (cast(int, x.type.shape[2]) - rope.dims, rope.dims))
    return make("cat", plain, rotate(turned, rope))


def attention(
    x: Node,
    l: Layer,
    rope: Rope | None,
    *,
    qk_norm: bool = False,
    norm_rotated: bool = False,
    gate: Node | None = None,
) -> Node:
    """Grouped-query attention of x [T, width]: [T, width].

    rope: None leaves positions out.  qk_norm: q and k are normed, and with norm_rotated only after RoPE.
    gate: [T, n_head * head_v], or [T, n_head, 1] for one of each head, times what the heads give.
    """
    c = l.config
    factors = rope_factors(l) if rope else None
    q, k, v = project(x, l, qk_norm=qk_norm and not norm_rotated)
    q, k = rotate(q, rope, factors), rotate(k, rope, factors)
    if qk_norm and norm_rotated:
        q, k = head_norm(q, l.attn_q_norm), head_norm(k, l.attn_k_norm)
    if c.temper_scale:
        q = make("temper", q, length=c.rope_context, by=c.temper_scale)
    y = attend(q, k, v, l)  # [T, n_head * head_v]
    return linear(apply_gate(y, gate), l.attn_output, c.n_embd)


def apply_gate(y: Node, gate: Node | None) -> Node:
    """y [T, n] times a gate as long, or [T, heads, 1]."""
    if gate is None or gate.type.shape == y.type.shape:
        return y * gate if gate else y
    n, size = cast(int, gate.type.shape[1]), cast(int, y.type.shape[1])
    return make("reshape", heads(y, n, size // n) * gate, shape=("T", size))


def attend(q: Node, k: Node, v: Node, l: Layer, *, scale: float = 0.0, chosen: Node | None = None) -> Node:
    """Store k and v [T, n_head_kv, size] and attend to all so far with q [T, n_head, size]: as `attend_to`."""
    kv = make("kv_store", k, v, layer=l.slot)
    return attend_to(q, kv, l, scale=scale, chosen=chosen)


def attend_to(q: Node, kv: Node, l: Layer, *, scale: float = 0.0, chosen: Node | None = None) -> Node:
    """Attend with q [T, n_head, size] to what a layer, this or an earlier one, has stored: [T, n_head * size of v].

    scale: where the configuration has none; 0 for 1 / sqrt(head_k).
    chosen: positions [T, any] to attend to in place of all.
    """
    c = l.config
    sinks = (l.attn_sinks.weight(l.n_head),) if l.attn_sinks else ()
    how = {"scale": c.scale or scale or 1.0 / math.sqrt(l.head_k), "window": l.window}
    how |= {"softcap": c.softcap, "alibi": c.alibi}
    if l.window and c.chunked:
        how["chunked"] = True
    if not c.causal:
        how["causal"] = False
    y = (
        make("attend_chosen", q, kv, chosen, *sinks, **how)
        if chosen
        else make("attend", q, kv, *sinks, **how)
    )
    return make("reshape", y, shape=("T", cast(int, y.type.shape[1]) * cast(int, y.type.shape[2])))


def feed_forward(x: Node, l: Layer, act: str = "silu") -> Node:
    """act(x @ gate) * (x @ up) @ down (Shazeer 2020, arXiv:2002.05202): [T, width].

    The gate may be the first half of one matrix, and up the second.
    """
    if not l.ffn_gate and l.ffn_up.rows == 2 * l.n_ff:
        gate, up = split(linear(x, l.ffn_up, 2 * l.n_ff), (l.n_ff, l.n_ff))
    else:
        gate, up = linear(x, l.ffn_gate, l.n_ff), linear(x, l.ffn_up, l.n_ff)
    return linear(make("act", gate, kind=act) * up, l.ffn_down, l.config.n_embd)


def mlp(x: Node, l: Layer, act: str) -> Node:
    """act(x @ up) @ down: [T, width]."""
    return linear(make("act", linear(x, l.ffn_up, l.n_ff), kind=act), l.ffn_down, l.config.n_embd)


def learned_positions(w: Weights) -> Node:
    """A learned vector for each position: [T, width].

    Raises ModelError when a sequence may grow longer than the table.
    """
    c, table = w.config, w.position_embd
    if table and table.rows < c.n_ctx:
        raise ModelError(
            f"the model knows {table.rows} positions, not {c.n_ctx}",
            where=w.path,
            fix=f"use a context (-c) of at most {table.rows}",
        )
    return make("embed", table.weight(None, c.n_embd), make("positions"))


def token_types(w: Weights) -> Node:
    """A learned vector for each token, by the sentence that it belongs to: [T, width]."""
    return make("embed", w.token_types.weight(None, w.config.n_embd), make("types"))
