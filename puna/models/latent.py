"""Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434): keys and values of all heads from one vector.

A token's latent vector and a key that is rotated and shared by all heads are all that the cache holds, for files whose
second matrix is split into one that turns queries into latent ones (attn_k_b) and one that turns what attention gives
back into values (attn_v_b). For files with both in one matrix (attn_kv_b), keys and values are made before they are
stored, a head each.
"""

from __future__ import annotations

from dataclasses import dataclass

from puna.graph import Node, Rope, make
from puna.models.blocks import apply_gate, attend, heads, linear, norm, rope_factors, rotate, split
from puna.models.config import ModelConfig
from puna.models.weights import Layer

__all__ = ["KEYS", "Latent", "latent_attention", "latent_queries", "latent_sizes"]

# What an architecture with latent attention reads.
KEYS = (
    "attention.key_length_mla",
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_length_mla",
)


@dataclass(frozen=True)
class Latent:
    """Sizes of a layer: of the latent vector, and of a head's key without its rotated part, that part, its value."""

    rank: int
    plain: int
    turned: int
    value: int

    @property
    def key(self) -> int:
        return self.plain + self.turned


def latent_sizes(c: ModelConfig, suffix: str = "") -> Latent:
    """The sizes that a file gives. suffix: of the keys.

    Raises ModelError where they do not fit together.
    """
    if suffix or "attention.key_length_mla" in c.own:
        key, value = (
            c.count(f"attention.key_length_mla{suffix}"),
            c.count(f"attention.value_length_mla{suffix}"),
        )
    else:
        key, value = c.head_k, c.head_v
    rank = c.count(f"attention.kv_lora_rank{suffix}") if suffix else c.kv_rank
    if not 0 < c.rope_dims < key:
        raise c.error(
            "rope.dimension_count", f"{c.rope_dims} leaves nothing of a key of {key} that is not rotated"
        )
    return Latent(rank, key - c.rope_dims, c.rope_dims, value)


def latent_attention(
    x: Node,
    l: Layer,
    sizes: Latent,
    rope: Rope | None,
    *,
    queries: Node | None = None,
    gate: Node | None = None,
    chosen: Node | None = None,
) -> Node:
    """Latent attention of x [T, width]: [T, width].

    queries: what attn_q_b reads, where the model makes use of it elsewhere.
    chosen: positions [T, any] to attend to in place of all.
    gate: [T, n_head * value] or [T, n_head, 1], times what the heads give.
    """
    s, n, factors, scale = sizes, l.n_head, rope_factors(l) if rope else None, sizes.key**-0.5
    if l.attn_q_b:
        q = linear(latent_queries(x, l) if queries is None else queries, l.attn_q_b, n * s.key)
    else:
        q = linear(x, l.attn_q, n * s.key)
    q, q_turned = split(heads(q, n, s.key), (s.plain, s.turned))  # [T, n_head, plain], [T, n_head, turned]
    latent, turned = split(linear(x, l.attn_kv_a_mqa, s.rank + s.turned), (s.rank, s.turned))
    latent = norm(latent, l.attn_kv_a_norm)  # [T, rank]
    turned = norm(turned, l.attn_k_norm) if l.attn_k_norm else turned
    q_turned, turned = rotate(q_turned, rope, factors), rotate(heads(turned, 1, s.turned), rope, factors)
    if l.attn_kv_b:
        both = heads(linear(latent, l.attn_kv_b, n * (s.plain + s.value)), n, s.plain + s.value)
        k, v = split(both, (s.plain, s.value))
        y = attend(
            whole(q, q_turned, l), make("cat", k, turned), v, l, scale=scale, chosen=chosen
        )  # [T, n_head * value]
    else:
        q = make("linear_heads", q, l.attn_k_b.weight(n, s.rank, s.plain))  # [T, n_head, rank]
        k = make("cat", heads(latent, 1, s.rank), turned)  # [T, 1, rank + turned]
        v = make("slice", k, start=0, size=s.rank)
        y = heads(attend(whole(q, q_turned, l), k, v, l, scale=scale, chosen=chosen), n, s.rank)
        y = make("linear_heads", y, l.attn_v_b.weight(n, s.value, s.rank))
        y = make("reshape", y, shape=("T", n * s.value))
    return linear(apply_gate(y, gate), l.attn_output, l.config.n_embd)


def latent_queries(x: Node, l: Layer) -> Node:
    """What queries are pressed through: [T, rank of queries]."""
    return norm(linear(x, l.attn_q_a, l.attn_q_a.rows), l.attn_q_a_norm)


def whole(q: Node, turned: Node, l: Layer) -> Node:
    """Queries with both their parts, tempered by position where the model does that: [T, n_head, size]."""
    c = l.config
    q = make("cat", q, turned)
    if not c.temper_scale:
        return q
    return make("temper", q, length=temper_length(c), by=c.temper_scale)


def temper_length(c: ModelConfig) -> int:
    return c.count("attention.temperature_length", c.rope_context, most=2**31 - 1)
