"""config.json under one set of names; what a conversion has read of it, and what it has not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from puna.errors import ModelError

__all__ = ["ALIASES", "Config"]

# Older names of some architectures, and the name that stands for the same elsewhere.
ALIASES: Mapping[str, str] = {
    "activation": "hidden_act",
    "activation_function": "hidden_act",
    "d_ff": "intermediate_size",
    "d_kv": "head_dim",
    "d_model": "hidden_size",
    "ffn_hidden_size": "intermediate_size",
    "hidden_activation": "hidden_act",
    "layer_norm_epsilon": "layer_norm_eps",
    "norm_epsilon": "layer_norm_eps",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_head_kv": "num_key_value_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "num_experts": "num_local_experts",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "num_layers": "num_hidden_layers",
    "rope_scaling": "rope_parameters",
    "rotary_emb_base": "rope_theta",
    "rotary_pct": "partial_rotary_factor",
}
# Keys of every model that do not change what it computes, or that another file repeats.
SILENT_NAMES = """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _sliding_window_pattern
    add_cross_attention architectures attention_dropout attention_probs_dropout_prob
    attention_softmax_in_fp32 attn_implementation attn_pdrop audio_config audio_token_id auto_map
    boa_token_id boi_token_id boi_token_index bos_token_id cache_implementation chunk_size_feed_forward
    classifier_dropout cross_attention_hidden_size dropout_rate dtype embd_pdrop embedding_dropout eoa_token_id
    eoa_token_index eoi_token_id eoi_token_index eos_token_id finetuning_task gguf_file
    gradient_checkpointing hidden_dropout hidden_dropout_prob id2label image_token_id image_token_index
    initializer_factor initializer_range is_decoder is_encoder_decoder label2id layer_norm_type
    mask_token_id max_window_layers mm_tokens_per_image model_type multimodal_projector_bias n_ctx
    no_repeat_ngram_size num_labels output_attentions output_hidden_states output_router_logits
    pad_token_id prefix pretraining_tp problem_type projector_hidden_act prune_heads pruned_heads
    remove_invalid_values resid_pdrop residual_dropout return_dict return_dict_in_generate
    router_aux_loss_coef router_jitter_noise scale_attention_softmax_in_fp32 scale_attn_weights
    sep_token_id slow_but_exact spatial_merge_size summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj task_specific_params temperature
    tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript transformers_version
    typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache video_token_id
    vision_config vision_feature_layer
"""
SILENT = frozenset(SILENT_NAMES.split())
# Keys that no architecture here knows, but that change results where they are set.
FEATURE_NAMES = """
    activation_sparsity activation_sparsity_pattern alibi altup_num_inputs attention_bias
    attention_multiplier attn_logit_softcapping clip_qkv compression_config embedding_multiplier
    enable_moe_block final_logit_softcapping hidden_act hidden_size_per_layer_input kv_lora_rank
    layer_types logit_scale logits_scaling mamba_d_state mlp_bias moe_intermediate_size n_routed_experts
    n_shared_experts new_decoder_architecture no_rope_layer_interval no_rope_layers num_experts_per_tok
    num_kv_shared_layers num_local_experts parallel_attn parallel_residual q_lora_rank qk_layernorm
    qkv_bias quantization_config query_pre_attn_scalar residual_multiplier rope_parameters rope_theta
    shared_expert_intermediate_size sliding_window use_bidirectional_attention use_parallel_residual
    use_qk_norm use_qkv_bias use_sliding_window
"""
FEATURES = frozenset(FEATURE_NAMES.split())
NESTED = "text_config"


class Config:
    """The values of config.json, those of the text model first, with the defaults of the model's class.

    A key that is null is one that says "none", whatever the default.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        nested = values.get(NESTED)
        self.where = where
        self.values = canonical({**values, **(nested if isinstance(nested, dict) else {})})
        self.values.pop(NESTED, None)
        self.used: set[str] = set()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the model's class."""
        held = self.values.get("architectures")
        return tuple(held) if isinstance(held, list) and all(isinstance(item, str) for item in held) else ()

    def assume(self, defaults: Mapping[str, Any]) -> None:
        """Values for keys that the file leaves out."""
        self.values = {**canonical(defaults), **self.values}

    def error(self, key: str, what: str, fix: str | None = None) -> ModelError:
        return ModelError(f"'{key}' {what}", where=self.where, fix=fix)

    def get(self, key: str) -> Any:
        """The value as it stands, None where there is none."""
        self.used.add(key)
        return self.values.get(key)

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, f"is {shown(value)}, where true or false is needed")
        return bool(value)

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, f"is {shown(value)}, where a text is needed")
        return value

    def optional_count(self, key: str, least: int = 1) -> int | None:
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            needed = f"a whole number from {least} to {LIMITS.get(key, MOST)}"
            raise self.error(key, f"is {shown(value)}, where {needed} is needed")
        return value

    def count(self, key: str, least: int = 1) -> int:
        count: int = self.required(key, self.optional_count(key, least))
        return count

    def optional_number(self, key: str) -> float | None:
        value = self.get(key)
        return None if value is None else self.checked(key, value)

    def number(self, key: str) -> float:
        number: float = self.required(key, self.optional_number(key))
        return number

    def checked(self, key: str, value: Any) -> float:
        """A finite number."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, f"is {shown(value)}, where a number is needed")
        return float(value)

    def required(self, key: str, value: Any) -> Any:
        if value is None:
            raise self.error(key, "is missing", "add it to config.json as the model's class has it")
        return value

    def demand(self, key: str, allowed: Sequence[Any]) -> None:
        """Raise ModelError unless a value is one that the architecture can have."""
        value = self.get(key)
        if value not in allowed or (isinstance(value, bool) and not any(value is item for item in allowed)):
            words = " or ".join(shown(item) for item in allowed)
            raise self.error(key, f"is {shown(value)}, and this architecture is converted for {words} only")

    def refuse_unread(self, features: frozenset[str]) -> list[str]:
        """Keys that nothing has read and that do not say "none".

        Raises ModelError for one that changes results: a feature of some architecture here that this one has not.
        """
        left = [key for key, value in self.values.items() if key not in self.used | SILENT and says(value)]
        for key in left:
            if key in features | FEATURES:
                what = f"is {shown(self.values[key])}, which is not supported for this architecture"
                raise self.error(key, what, UNPACK.get(key))
        return sorted(left)

    @property
    def layers(self) -> int:
        count = self.count("num_hidden_layers")
        if count > MOST_LAYERS:
            raise self.error("num_hidden_layers", f"is {count}, over the limit of {MOST_LAYERS}")
        return count

    @property
    def heads(self) -> int:
        return self.count("num_attention_heads")

    @property
    def heads_kv(self) -> int:
        return self.optional_count("num_key_value_heads") or self.heads

    @property
    def head_size(self) -> int:
        return self.optional_count("head_dim") or self.count("hidden_size") // self.heads

    @property
    def experts(self) -> int:
        """Experts of a layer, 0 where there are none."""
        count = self.optional_count("num_local_experts", least=0) or 0
        if count > MOST_EXPERTS:
            raise self.error("num_local_experts", f"is {count}, over the limit of {MOST_EXPERTS}")
        return count

    @property
    def altups(self) -> int:
        """AltUp's streams beside the first."""
        return self.count("altup_num_inputs", least=2) - 1

    @property
    def windowed(self) -> list[bool] | None:
        """Which layers have a sliding window, by 'layer_types'; None where that is not given."""
        kinds = self.get("layer_types")
        if kinds is None:
            return None
        if not isinstance(kinds, list) or not set(map(str, kinds)) <= LAYER_TYPES.keys():
            known = ", ".join(LAYER_TYPES)
            raise self.error("layer_types", f"is {shown(kinds)}, where a list of {known} is needed")
        if len(kinds) != self.layers:
            raise self.error("layer_types", f"has {len(kinds)} entries for {self.layers} layers")
        return [LAYER_TYPES[str(kind)] for kind in kinds]


MOST, MOST_LAYERS, MOST_EXPERTS = 2**31 - 1, 2048, 4096
LIMITS: Mapping[str, int] = {"num_hidden_layers": MOST_LAYERS, "num_local_experts": MOST_EXPERTS}
LAYER_TYPES: Mapping[str, bool] = {"full_attention": False, "sliding_attention": True}
UNPACK: Mapping[str, str] = {
    "quantization_config": "give the model in float32, float16 or bfloat16: before it was quantised",
}


def canonical(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same under the names that this package uses; the canonical name goes first."""
    found = {ALIASES[key]: value for key, value in values.items() if key in ALIASES}
    return {**found, **{key: value for key, value in values.items() if key not in ALIASES}}


def says(value: Any) -> bool:
    """Whether a value says more than "none"."""
    return value is not None and value is not False and value not in ("", [], {})


def shown(value: Any) -> str:
    text = {True: "true", False: "false", None: "null"}.get(value) if is_word(value) else repr(value)
    assert text is not None
    return text if len(text) <= 80 else text[:77] + "..."


def is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)
