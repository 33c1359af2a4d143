"""OLMo 1 to 3, and OLMoE."""

from __future__ import annotations

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.changes import interleaved_k, interleaved_q
from puna.convert.tables import ATTENTION, EXPERTS, GATED, QK_NORMS
from puna.convert.tensors import Rule

__all__ = ["OLMo", "OLMo2", "OLMo3", "OLMoE"]

EPS = 1e-5  # of the first OLMo's norms, which have no weights


class OLMo(Architecture):
    """Norms without weights; q, k and v may be limited to a range."""

    hf = names("OlmoForCausalLM")
    name = "olmo"
    defaults = values(hidden_act="silu", max_position_embeddings=2048, layer_norm_eps=EPS)
    demands = values(attention_bias=(None, False), hidden_act=("silu",), layer_norm_eps=(EPS,))
    numbers = values(**{"attention.clamp_kqv": "clip_qkv?"})
    stem = rules({"embed_tokens": "token_embd"})
    layers = rules(
        ATTENTION,
        GATED,
        {
            "self_attn.q_proj": Rule("attn_q", interleaved_q),
            "self_attn.k_proj": Rule("attn_k", interleaved_k),
        },
    )
    eps = ("attention.layer_norm_epsilon", "layer_norm_eps")
    pres = names("olmo", "gpt-2", "dbrx")


class OLMo2(Architecture):
    """Norms after each block alone, and on q and k."""

    hf = names("Olmo2ForCausalLM")
    name = "olmo2"
    defaults = values(hidden_act="silu", max_position_embeddings=2048, rms_norm_eps=1e-5)
    demands = values(attention_bias=(None, False), hidden_act=("silu",))
    layers = rules(
        ATTENTION,
        QK_NORMS,
        GATED,
        {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"},
    )
    pres = names("dbrx", "superbpe", "gpt-2")


class OLMo3(OLMo2):
    """Sliding windows in three of four layers, which YaRN does not stretch."""

    hf = names("Olmo3ForCausalLM")
    defaults = values(OLMo2.defaults, rope_theta=500000.0, sliding_window=4096)
    windows = True

    def windowed(self) -> list[bool]:
        c, given = self.config, self.config.windowed
        if c.optional_count("sliding_window") is None:
            return [False] * c.layers
        return given or [(layer + 1) % 4 != 0 for layer in range(c.layers)]


class OLMoE(Architecture):
    """Experts in every layer, their weights as the softmax over all gives them; norms on q and k over all heads."""

    hf = names("OlmoeForCausalLM")
    name = "olmoe"
    defaults = values(
        hidden_act="silu",
        max_position_embeddings=4096,
        norm_topk_prob=False,
        num_experts=64,
        num_experts_per_tok=8,
        rms_norm_eps=1e-5,
    )
    demands = values(
        attention_bias=(None, False), clip_qkv=(None,), hidden_act=("silu",), norm_topk_prob=(False,)
    )
    layers = rules(
        ATTENTION,
        QK_NORMS,
        EXPERTS,
        {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"},
    )
    pres = names("olmo", "gpt-2", "dbrx")
