"""GLM-4 0414."""

from __future__ import annotations

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.tables import ATTENTION, with_bias

__all__ = ["GLM4"]


class GLM4(Architecture):
    """Norms before and after each block; half of each head is rotated, by neighbours; gate and up are one matrix."""

    hf = names("Glm4ForCausalLM")
    name = "glm4"
    defaults = values(
        attention_bias=False,
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=131072,
        num_key_value_heads=2,
        partial_rotary_factor=0.5,
        rms_norm_eps=1.5625e-07,
    )
    demands = values(hidden_act=("silu",))
    layers = rules(
        with_bias(ATTENTION, "attention_bias", "attn_output"),
        {
            "input_layernorm": "attn_norm",
            "post_self_attn_layernorm": "post_attention_norm",
            "post_attention_layernorm": "ffn_norm",
            "mlp.gate_up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
            "post_mlp_layernorm": "post_ffw_norm",
        },
    )
    pres = names("glm4", "chatglm-bpe")
