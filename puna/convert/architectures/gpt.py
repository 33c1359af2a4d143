"""GPT-2, GPT-NeoX, BLOOM, Falcon, StarCoder: layer norms, and feed-forward blocks without a gate."""

from __future__ import annotations

from typing import Any, ClassVar

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.changes import grouped_qkv, headwise_qkv, transposed
from puna.convert.config import Config
from puna.convert.tensors import Rule, Rules
from puna.convert.typed import boolean, text
from puna.gguf import Value

__all__ = ["BLOOM", "GPT2", "Falcon", "GPTNeoX", "StarCoder", "StarCoder2"]

TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
EPS = ("attention.layer_norm_epsilon", "layer_norm_eps")


class LayerNormed(Architecture):
    """What these have in common. `transformer.` may be left out of the names."""

    eps = EPS
    stem_prefix = "transformer."
    layer_prefix = "transformer.h.{l}."
    ratio: ClassVar[int] = 4  # of the feed-forward block to the model in width, where nothing is said

    def __init__(self, config: Config) -> None:
        if config.get("intermediate_size") is None:
            config.values["intermediate_size"] = self.ratio * width(config)
        super().__init__(config)

    def renamed(self, name: str) -> str:
        is_head = name.startswith((self.stem_prefix, f"{self.head}."))
        return name if is_head else self.stem_prefix + name


def width(config: Config) -> int:
    return config.count("hidden_size")


class GPT2(LayerNormed):
    """Learned positions; matrices are stored with their rows as columns."""

    hf = names("GPT2LMHeadModel")
    name = "gpt2"
    defaults = values(
        hidden_act="gelu_new",
        layer_norm_eps=1e-5,
        max_position_embeddings=1024,
        scale_attn_by_inverse_layer_idx=False,
        tie_word_embeddings=True,
    )
    demands = values(
        hidden_act=TANH, reorder_and_upcast_attn=(None, False), scale_attn_by_inverse_layer_idx=(False,)
    )
    stem = rules({"wte": "token_embd", "wpe": "position_embd", "ln_f": Rule("output_norm", bias=True)})
    layers = rules(
        {
            "ln_1": Rule("attn_norm", bias=True),
            "attn.c_attn": Rule("attn_qkv", transposed, bias=True),
            "attn.c_proj": Rule("attn_output", transposed, bias=True),
            "ln_2": Rule("ffn_norm", bias=True),
            "mlp.c_fc": Rule("ffn_up", transposed, bias=True),
            "mlp.c_proj": Rule("ffn_down", transposed, bias=True),
        }
    )
    rope_kinds = None
    pres = names("gpt-2")


class StarCoder(GPT2):
    """GPT-2 with one key and value for all heads, and matrices as everyone else stores them."""

    hf = names("GPTBigCodeForCausalLM")
    name = "starcoder"
    demands = values(
        hidden_act=TANH,
        multi_query=(None, True),
        scale_attn_weights=(None, True),
        scale_attention_softmax_in_fp32=(None, True, False),
    )
    layers = rules(
        {
            "ln_1": Rule("attn_norm", bias=True),
            "attn.c_attn": Rule("attn_qkv", bias=True),
            "attn.c_proj": Rule("attn_output", bias=True),
            "ln_2": Rule("ffn_norm", bias=True),
            "mlp.c_fc": Rule("ffn_up", bias=True),
            "mlp.c_proj": Rule("ffn_down", bias=True),
        }
    )
    pres = names("starcoder")

    def __init__(self, config: Config) -> None:
        config.values["num_key_value_heads"] = 1
        super().__init__(config)


def dense(bias: bool | str, change: Any = None) -> Rules:
    """The matrices of a layer under the names that BLOOM, Falcon and GPT-NeoX share."""
    return {
        "query_key_value": Rule("attn_qkv", change, bias=bias),
        "dense": Rule("attn_output", bias=bias),
        "mlp.dense_h_to_4h": Rule("ffn_up", bias=bias),
        "mlp.dense_4h_to_h": Rule("ffn_down", bias=bias),
    }


def under(prefix: str, table: Rules) -> Rules:
    """A table whose matrices of attention have a prefix."""
    return {source if source.startswith("mlp.") else prefix + source: rule for source, rule in table.items()}


class BLOOM(LayerNormed):
    """ALiBi in place of positions, and a norm on embeddings."""

    hf = names("BloomForCausalLM")
    name = "bloom"
    defaults = values(
        apply_residual_connection_post_layernorm=False,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-5,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    demands = values(apply_residual_connection_post_layernorm=(False,))
    stem = rules(
        {
            "word_embeddings": "token_embd",
            "word_embeddings_layernorm": Rule("token_embd_norm", bias=True),
            "ln_f": Rule("output_norm", bias=True),
        }
    )
    layers = rules(
        {
            "input_layernorm": Rule("attn_norm", bias=True),
            "post_attention_layernorm": Rule("ffn_norm", bias=True),
            **under("self_attention.", dense(True, headwise_qkv)),
        }
    )
    rope_kinds = None
    pres = names("bloom")


class Falcon(LayerNormed):
    """Attention and feed-forward block side by side, in the 40B after a norm each; no biases."""

    hf = names("FalconForCausalLM", "RWForCausalLM")
    name = "falcon"
    defaults = values(
        alibi=False,
        bias=False,
        hidden_act="gelu",
        layer_norm_eps=1e-5,
        max_position_embeddings=2048,
        multi_query=True,
        new_decoder_architecture=False,
        parallel_attn=True,
        tie_word_embeddings=True,
    )
    demands = values(alibi=(False,), bias=(False,), hidden_act=("gelu", *TANH), parallel_attn=(True,))
    stem = rules({"word_embeddings": "token_embd", "ln_f": Rule("output_norm", bias=True)})
    layers = rules(under("self_attention.", dense(False, grouped_qkv)))
    rope_kinds = names()
    pres = names("falcon", "llama-bpe")

    def __init__(self, config: Config) -> None:
        config.assume(self.defaults)
        is_new, shared = config.flag("new_decoder_architecture"), config.flag("multi_query")
        if not is_new:
            config.values["num_key_value_heads"] = 1 if shared else config.heads
        self.two_norms = is_new and config.get("num_ln_in_parallel_attn") in (None, 2)
        super().__init__(config)

    def rules(self) -> Rules:
        one: Rules = {"input_layernorm": Rule("attn_norm", bias=True)}
        two: Rules = {"ln_mlp": Rule("attn_norm", bias=True), "ln_attn": Rule("attn_norm_2", bias=True)}
        return {**super().rules(), **self.of_layer(two if self.two_norms else one)}

    def keys(self) -> dict[str, Value]:
        return {**super().keys(), "tensor_data_layout": text("jploski")}


class GPTNeoX(LayerNormed):
    """Attention and feed-forward block side by side, each after a norm of its own; a part of each head is rotated."""

    hf = names("GPTNeoXForCausalLM")
    name = "gptneox"
    defaults = values(
        attention_bias=True,
        hidden_act="gelu",
        layer_norm_eps=1e-5,
        max_position_embeddings=2048,
        rotary_pct=0.25,
        use_parallel_residual=True,
    )
    demands = values(attention_bias=(None, True), hidden_act=("gelu", *TANH))
    stem_prefix = "gpt_neox."
    layer_prefix = "gpt_neox.layers.{l}."
    head = "embed_out"
    stem = rules({"embed_in": "token_embd", "final_layer_norm": Rule("output_norm", bias=True)})
    layers = rules(
        {
            "input_layernorm": Rule("attn_norm", bias=True),
            "post_attention_layernorm": Rule("ffn_norm", bias=True),
            **under("attention.", dense(True, headwise_qkv)),
        }
    )
    rope_kinds = names("linear")
    pres = names("olmo", "gpt-2")

    def keys(self) -> dict[str, Value]:
        parallel = boolean(self.config.flag("use_parallel_residual"))
        return {**super().keys(), "use_parallel_residual": parallel}


class StarCoder2(LayerNormed):
    """RoPE, few key and value heads, biases everywhere; a sliding window in the small ones."""

    hf = names("Starcoder2ForCausalLM")
    name = "starcoder2"
    defaults = values(
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-5,
        max_position_embeddings=4096,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        use_bias=True,
    )
    demands = values(hidden_act=TANH)
    stem_prefix = "model."
    layer_prefix = "model.layers.{l}."
    stem = rules({"embed_tokens": "token_embd", "norm": Rule("output_norm", bias=True)})
    layers = rules(
        {
            "input_layernorm": Rule("attn_norm", bias=True),
            "self_attn.q_proj": Rule("attn_q", bias="use_bias"),
            "self_attn.k_proj": Rule("attn_k", bias="use_bias"),
            "self_attn.v_proj": Rule("attn_v", bias="use_bias"),
            "self_attn.o_proj": Rule("attn_output", bias="use_bias"),
            "post_attention_layernorm": Rule("ffn_norm", bias=True),
            "mlp.c_fc": Rule("ffn_up", bias="use_bias"),
            "mlp.c_proj": Rule("ffn_down", bias="use_bias"),
        }
    )
    windows = "unheeded"
    pres = names("starcoder")
