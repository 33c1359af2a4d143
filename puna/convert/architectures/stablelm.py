"""StableLM 1 and 2."""

from __future__ import annotations

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.tables import ATTENTION, GATED, with_bias
from puna.convert.tensors import Rule, Rules
from puna.convert.typed import boolean
from puna.gguf import Value

__all__ = ["StableLM"]


class StableLM(Architecture):
    """Layer norms; a part of each head is rotated; in the 12B blocks side by side, and norms on q and k."""

    hf = names("StableLmForCausalLM")
    name = "stablelm"
    defaults = values(
        hidden_act="silu",
        layer_norm_eps=1e-5,
        max_position_embeddings=4096,
        partial_rotary_factor=0.25,
        qk_layernorm=False,
        use_parallel_residual=False,
        use_qkv_bias=False,
    )
    demands = values(hidden_act=("silu",))
    stem = rules({"embed_tokens": "token_embd", "norm": Rule("output_norm", bias=True)})
    layers = rules(
        with_bias(ATTENTION, "use_qkv_bias", "attn_output"),
        GATED,
        {"input_layernorm": Rule("attn_norm", bias=True)},
    )
    eps = ("attention.layer_norm_epsilon", "layer_norm_eps")
    rope_kinds = names()
    pres = names("stablelm2", "dbrx", "gpt-2")

    def rules(self) -> Rules:
        c = self.config
        second: Rules = {"post_attention_layernorm": Rule("ffn_norm", bias=True)}
        heads: Rules = {
            "self_attn.q_layernorm.norms.{e}": Rule("attn_q_norm", stack="heads"),
            "self_attn.k_layernorm.norms.{e}": Rule("attn_k_norm", stack="heads_kv"),
        }
        found = {} if c.flag("use_parallel_residual") else self.of_layer(second)
        return {**super().rules(), **found, **(self.of_layer(heads) if c.flag("qk_layernorm") else {})}

    def keys(self) -> dict[str, Value]:
        parallel = boolean(self.config.flag("use_parallel_residual"))
        return {**super().keys(), "use_parallel_residual": parallel}
