"""Llama, and the models that share its layer: Mistral, Mixtral, Ministral 3."""

from __future__ import annotations

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.changes import interleaved_k, interleaved_q
from puna.convert.rope import Rope, rope
from puna.convert.tables import ATTENTION, EXPERTS, GATED, with_bias
from puna.convert.tensors import Rule, Rules
from puna.convert.typed import f32
from puna.gguf import Value

__all__ = ["TURNED", "Llama", "Ministral3", "Mistral", "Mistral3", "Mixtral"]

# q and k lie so that neighbours turn together.
TURNED: Rules = {
    **with_bias(ATTENTION, "attention_bias"),
    "self_attn.q_proj": Rule("attn_q", interleaved_q, bias="attention_bias"),
    "self_attn.k_proj": Rule("attn_k", interleaved_k, bias="attention_bias"),
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


class Llama(Architecture):
    """Llama 3's frequency factors are a tensor."""

    hf = names("LlamaForCausalLM", "LLaMAForCausalLM")
    name = "llama"
    defaults = values(hidden_act="silu", max_position_embeddings=2048, rms_norm_eps=1e-6)
    demands = values(hidden_act=("silu",))
    counts = values(vocab_size="vocab_size?")
    layers = rules(TURNED, with_bias(GATED, "mlp_bias"))
    rope_kinds = names("linear", "yarn", "dynamic", "llama3")
    pres = names("llama-bpe", "smollm", "gpt-2", "qwen2")


class Mistral(Llama):
    """Llama with, in its first version, a sliding window on every layer."""

    hf = names("MistralForCausalLM")
    defaults = values(
        hidden_act="silu",
        max_position_embeddings=131072,
        num_key_value_heads=8,
        rms_norm_eps=1e-6,
        sliding_window=4096,
    )
    windows = "unheeded"
    pres = names("tekken", "llama-bpe")


class Mixtral(Mistral):
    """Mistral with a mixture of experts, under two names in checkpoints."""

    hf = names("MixtralForCausalLM")
    defaults = values(
        hidden_act="silu",
        max_position_embeddings=131072,
        num_experts_per_tok=2,
        num_key_value_heads=8,
        num_local_experts=8,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
    )
    layers = rules(
        TURNED,
        EXPERTS,
        {
            "block_sparse_moe.gate": "ffn_gate_inp",
            "block_sparse_moe.experts.{e}.w1": "ffn_gate_exps",
            "block_sparse_moe.experts.{e}.w2": "ffn_down_exps",
            "block_sparse_moe.experts.{e}.w3": "ffn_up_exps",
        },
    )


class Ministral3(Llama):
    """Mistral with YaRN, and with a temperature that grows with the position; its parameters have no defaults."""

    hf = names("Ministral3ForCausalLM")
    name = "mistral3"
    defaults = values(
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=262144,
        num_key_value_heads=8,
        rms_norm_eps=1e-5,
    )
    rope_kinds = names("yarn")
    pres = names("tekken")

    def find_rope(self, kinds: tuple[str, ...]) -> Rope:
        self.config.required("rope_parameters", self.config.get("rope_parameters"))
        everywhere = self.parameter("mscale_all_dim")
        return rope(
            self.config,
            kinds=kinds,
            log_multiplier=everywhere or 0.0,
            taken=("llama_4_scaling_beta", "max_position_embeddings"),
        )

    def parameter(self, name: str) -> float | None:
        held = self.config.get("rope_parameters")
        value = held.get(name) if isinstance(held, dict) else None
        return None if value is None else self.config.checked(name, value)

    def keys(self) -> dict[str, Value]:
        beta = self.parameter("llama_4_scaling_beta")
        temper = {} if beta is None else {"attention.temperature_scale": f32(beta)}
        return {**super().keys(), **temper}


class Mistral3(Ministral3):
    """The text model of those that see pictures too: Mistral, or Ministral 3."""

    hf = names("Mistral3ForConditionalGeneration")
    defaults = Mistral.defaults
    windows = "unheeded"

    def find_rope(self, kinds: tuple[str, ...]) -> Rope:
        given = self.config.get("rope_parameters")
        return super().find_rope(kinds) if given else rope(self.config, kinds=())
