"""Phi 1.5 to 4: two blocks side by side in the old ones, matrices merged in the new ones."""

from __future__ import annotations

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.tensors import Rule
from puna.convert.typed import u32
from puna.gguf import Value

__all__ = ["Phi2", "Phi3"]


class Phi2(Architecture):
    """Attention and feed-forward block share a norm; every matrix has a bias, and a part of each head is rotated."""

    hf = names("PhiForCausalLM")
    name = "phi2"
    defaults = values(
        hidden_act="gelu_new",
        layer_norm_eps=1e-5,
        max_position_embeddings=2048,
        partial_rotary_factor=0.5,
        qk_layernorm=False,
    )
    demands = values(hidden_act=("gelu_new", "gelu_pytorch_tanh"), qk_layernorm=(False,))
    stem = rules({"embed_tokens": "token_embd", "final_layernorm": Rule("output_norm", bias=True)})
    layers = rules(
        {
            "input_layernorm": Rule("attn_norm", bias=True),
            "self_attn.q_proj": Rule("attn_q", bias=True),
            "self_attn.k_proj": Rule("attn_k", bias=True),
            "self_attn.v_proj": Rule("attn_v", bias=True),
            "self_attn.dense": Rule("attn_output", bias=True),
            "mlp.fc1": Rule("ffn_up", bias=True),
            "mlp.fc2": Rule("ffn_down", bias=True),
        }
    )
    eps = ("attention.layer_norm_epsilon", "layer_norm_eps")
    head_bias = True
    rope_kinds = names()
    pres = names("phi-2", "gpt-2")


class Phi3(Architecture):
    """q, k and v are one matrix, gate and up another; long texts rotate by LongRoPE's factors."""

    hf = names("Phi3ForCausalLM")
    name = "phi3"
    defaults = values(hidden_act="silu", max_position_embeddings=4096, rms_norm_eps=1e-5)
    demands = values(hidden_act=("silu",))
    layers = rules(
        {
            "input_layernorm": "attn_norm",
            "self_attn.qkv_proj": "attn_qkv",
            "self_attn.o_proj": "attn_output",
            "post_attention_layernorm": "ffn_norm",
            "mlp.gate_up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        }
    )
    rope_kinds = names("longrope", "su")
    windows = "unheeded"
    pres = names("llama-bpe", "gpt-4o", "dbrx")

    def window_keys(self) -> dict[str, Value]:
        """A window of 0 is what tells Phi 4 from Phi 3."""
        return super().window_keys() or {"attention.sliding_window": u32(0)}
