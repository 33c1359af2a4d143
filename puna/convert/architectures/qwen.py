"""Qwen 1.5 to 3, dense and with experts, and Seed OSS."""

from __future__ import annotations

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.changes import flat
from puna.convert.tables import ATTENTION, EXPERTS, GATED, QK_NORMS, with_bias
from puna.convert.tensors import Rule, Rules

__all__ = ["Qwen2", "Qwen2MoE", "Qwen3", "Qwen3MoE", "SeedOSS"]

NORMS: Rules = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


class Qwen2(Architecture):
    """Llama's layer with biases on q, k and v; some layers may have a sliding window."""

    hf = names("Qwen2ForCausalLM")
    name = "qwen2"
    defaults = values(
        hidden_act="silu",
        max_position_embeddings=32768,
        max_window_layers=28,
        num_key_value_heads=32,
        rms_norm_eps=1e-6,
        sliding_window=4096,
        use_sliding_window=False,
    )
    demands = values(hidden_act=("silu",))
    layers = rules(with_bias(ATTENTION, True, "attn_output"), GATED, NORMS)
    windows = "unheeded"
    pres = names("qwen2", "deepseek-r1-qwen", "gpt-2")

    def windowed(self) -> list[bool]:
        c = self.config
        if not c.flag("use_sliding_window"):
            c.get("sliding_window"), c.get("layer_types")
            return [False] * c.layers
        first = c.count("max_window_layers", 0)
        return c.windowed or [layer >= first for layer in range(c.layers)]


class Qwen3(Qwen2):
    """Norms on the heads of q and k; biases only where the configuration says so."""

    hf = names("Qwen3ForCausalLM")
    name = "qwen3"
    defaults = values(Qwen2.defaults, head_dim=128)
    layers = rules(with_bias(ATTENTION, "attention_bias"), QK_NORMS, GATED, NORMS)


class Qwen2MoE(Qwen2):
    """Experts in every layer, and one that all tokens take, behind a gate."""

    hf = names("Qwen2MoeForCausalLM")
    name = "qwen2moe"
    defaults = values(
        Qwen2.defaults,
        decoder_sparse_step=1,
        moe_intermediate_size=1408,
        norm_topk_prob=False,
        num_experts=60,
        num_experts_per_tok=4,
        num_key_value_heads=16,
        shared_expert_intermediate_size=5632,
    )
    demands = values(
        decoder_sparse_step=(1,),
        hidden_act=("silu",),
        mlp_only_layers=(None, []),
        norm_topk_prob=(False,),
        qkv_bias=(None, True),
    )
    counts = values(
        expert_feed_forward_length="moe_intermediate_size",
        expert_shared_feed_forward_length="shared_expert_intermediate_size",
    )
    layers = rules(
        with_bias(ATTENTION, True, "attn_output"),
        EXPERTS,
        NORMS,
        {
            "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
            "mlp.shared_expert.up_proj": "ffn_up_shexp",
            "mlp.shared_expert.down_proj": "ffn_down_shexp",
            "mlp.shared_expert_gate": Rule("ffn_gate_inp_shexp", flat),
        },
    )


class Qwen3MoE(Qwen3):
    """Experts in every layer, their weights made to sum to 1."""

    hf = names("Qwen3MoeForCausalLM")
    name = "qwen3moe"
    defaults = values(
        Qwen3.defaults,
        decoder_sparse_step=1,
        moe_intermediate_size=768,
        norm_topk_prob=False,
        num_experts=128,
        num_experts_per_tok=8,
    )
    demands = values(
        decoder_sparse_step=(1,), hidden_act=("silu",), mlp_only_layers=(None, []), norm_topk_prob=(True,)
    )
    counts = values(expert_feed_forward_length="moe_intermediate_size")
    layers = rules(with_bias(ATTENTION, "attention_bias"), QK_NORMS, EXPERTS, NORMS)


class SeedOSS(Architecture):
    """Qwen 2's layer; the norm before the feed-forward block has another name in GGUF."""

    hf = names("SeedOssForCausalLM")
    name = "seed_oss"
    defaults = values(
        attention_bias=True,
        attention_out_bias=False,
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=524288,
        num_key_value_heads=8,
        rms_norm_eps=1e-6,
    )
    demands = values(attention_out_bias=(None, False), hidden_act=("silu",), mlp_bias=(None, False))
    layers = rules(
        with_bias(ATTENTION, "attention_bias", "attn_output"),
        GATED,
        {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"},
    )
    pres = names("seed-coder")
