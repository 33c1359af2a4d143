"""ERNIE 4.5, dense."""

from __future__ import annotations

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.tables import ATTENTION, GATED

__all__ = ["ERNIE45"]


class ERNIE45(Architecture):
    """Llama's layer whose rows lie as GGML wants them."""

    hf = names("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")
    name = "ernie4_5"
    defaults = values(
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=131072,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        tie_word_embeddings=True,
    )
    demands = values(hidden_act=("silu",), use_bias=(None, False))
    layers = rules(ATTENTION, GATED, {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"})
    pres = names("llama-bpe")
