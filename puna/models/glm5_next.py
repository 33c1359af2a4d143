"""GLM 5.3: Kimi Delta Attention in most layers, latent attention in the others, on mixed residual streams."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models import indexer, streams
from puna.models.blocks import attend, heads, linear, norm
from puna.models.delta import kimi_delta_attention, projected
from puna.models.kimi_linear import KimiLinear
from puna.models.latent import latent_queries
from puna.models.recurrent import flat
from puna.models.weights import Layer

__all__ = ["GLM5Next"]

UNIT_EPS = 1e-6


class GLM5Next(streams.Mixed, KimiLinear):
    """Pre-norm decoder with mixtures of experts, for texts that its indexers would choose all of."""

    names = ("glm5-next",)
    gating = "sigmoid"
    normed = False
    reads = (*KimiLinear.reads, *indexer.KEYS, *streams.MIXED)
    requires = "output", "exp_probs_b.bias"

    def attention(self, x: Node, l: Layer) -> Node:
        if not l.ssm_conv1d_q:
            return self.latent(x, l)
        decay = self.bounded_decay(x, l)
        gate = projected(projected(x, l.ssm_g_a, l.ssm_g_a.rows), l.ssm_g_b, l.ssm_g_b.rows)
        return kimi_delta_attention(x, l, gate, decay, eps=UNIT_EPS)

    def latent(self, x: Node, l: Layer) -> Node:
        """Latent attention without positions: keys are the latent vectors, whole."""
        c, n = self.config, l.n_head
        indexer.all_chosen(l)
        key, value = c.count("attention.key_length_mla"), c.count("attention.value_length_mla")
        q = heads(linear(latent_queries(x, l), l.attn_q_b, n * key), n, key)
        k = heads(norm(linear(x, l.attn_kv_a_mqa, c.kv_rank), l.attn_kv_a_norm), 1, c.kv_rank)
        q = make("linear_heads", q, l.attn_k_b.weight(n, c.kv_rank, key))  # [T, n_head, rank]
        v = make("slice", k, start=0, size=c.kv_rank)
        y = heads(attend(q, k, v, l, scale=key**-0.5), n, c.kv_rank)
        y = make("linear_heads", y, l.attn_v_b.weight(n, value, c.kv_rank))
        return linear(flat(y), l.attn_output, c.n_embd)

    def final_norm(self, x: Node) -> Node:
        """Of the streams' mean."""
        return norm(make("weighted_sum", x) * (1.0 / self.streams), self.weights.output_norm)
