"""Nemotron 3 and 4, Minitron."""

from __future__ import annotations

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.tables import ATTENTION
from puna.convert.tensors import Rule

__all__ = ["Nemotron"]


class Nemotron(Architecture):
    """Layer norms that store what is added to 1, squared ReLU, rotation of a part of each head."""

    hf = names("NemotronForCausalLM")
    name = "nemotron"
    defaults = values(
        hidden_act="relu2", max_position_embeddings=4096, norm_eps=1e-5, partial_rotary_factor=0.5
    )
    demands = values(attention_bias=(None, False), hidden_act=("relu2",), mlp_bias=(None, False))
    stem = rules({"embed_tokens": "token_embd", "norm": Rule("output_norm", plus=1.0, bias=True)})
    layers = rules(
        ATTENTION,
        {
            "input_layernorm": Rule("attn_norm", plus=1.0, bias=True),
            "post_attention_layernorm": Rule("ffn_norm", plus=1.0, bias=True),
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        },
    )
    eps = ("attention.layer_norm_epsilon", "norm_eps")
    rope_kinds = names("linear")
    pres = names("gpt-4o", "llama-bpe")
