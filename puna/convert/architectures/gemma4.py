"""Gemma 4: the text model, alone or out of that which sees and hears too."""

from __future__ import annotations

from typing import Any

import numpy as np

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.architectures.gemma import TANH
from puna.convert.architectures.gemma3n import LATE_KEYS, NORMS, PER_LAYER, PER_LAYER_STEM
from puna.convert.rope import Rope, parameters
from puna.convert.tables import ATTENTION, GATED
from puna.convert.tensors import Rule, Rules, prefixed
from puna.convert.typed import f32, u32, u32s
from puna.convert.vocabulary.lines import LINES
from puna.gguf import Value

__all__ = ["Gemma4", "Gemma4Unified"]

STILL = 1e30  # a divisor of frequencies: the pair does not turn at any position
EXPERTS: Rules = {
    "router.proj": "ffn_gate_inp",
    "router.scale": Rule("ffn_gate_inp", end=".scale"),
    "router.per_expert_scale": Rule("ffn_down_exps", end=".scale"),
    "experts.gate_up_proj": "ffn_gate_up_exps",
    "experts.down_proj": "ffn_down_exps",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
}


class Gemma4(Architecture):
    """Full layers have heads of their own size and number, and the last layers, which share keys, may be wider."""

    hf = names("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
    name = "gemma4"
    defaults = values(
        global_head_dim=512,
        head_dim=256,
        hidden_act=TANH,
        hidden_size_per_layer_input=256,
        max_position_embeddings=131072,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_kv_shared_layers=0,
        rms_norm_eps=1e-6,
        sliding_window=512,
        tie_word_embeddings=True,
        vocab_size=262144,
    )
    demands = values(
        attention_bias=(None, False), hidden_act=(TANH,), use_bidirectional_attention=(None, False, "vision")
    )
    counts = values({"attention.shared_kv_layers": "num_kv_shared_layers"})
    numbers = values(final_logit_softcapping="final_logit_softcapping?")
    layers = rules(
        ATTENTION, LATE_KEYS, GATED, NORMS, {"layer_scalar": Rule("layer_output_scale", optional=True)}
    )
    windows = True
    pres = names(LINES)

    def keys(self) -> dict[str, Value]:
        c = self.config
        c.get("vocab_size_per_layer_input"), c.get("attention_k_eq_v")  # the tensors tell
        c.get("global_head_dim")
        size, heads = self.full("head_dim", "global_head_dim"), self.full_heads()
        each = [c.heads_kv if windowed else heads for windowed in self.windowed()]
        sizes = {f"attention.{part}_length": u32(size) for part in ("key", "value")}
        windowed = {f"attention.{part}_length_swa": u32(c.head_size) for part in ("key", "value")}
        inputs = {"embedding_length_per_layer_input": u32(self.input_size())}
        return {**super().keys(), **sizes, **windowed, **inputs, "attention.head_count_kv": u32s(each)}

    def input_size(self) -> int:
        """Of each layer's own input, 0 where layers have none."""
        return self.config.optional_count("hidden_size_per_layer_input", 0) or 0

    def full_heads(self) -> int:
        """Key/value heads of full layers, which have a number of their own where keys are values too."""
        alike, own = self.config.get("attention_k_eq_v"), "num_global_key_value_heads"
        self.config.get(own)
        return self.full("num_key_value_heads", own if alike is True else None)

    def full(self, key: str, other: str | None) -> int:
        """What full layers have: from what is said of each layer, under a name of its own, or as windowed ones."""
        c, held = self.config, self.config.get("per_layer_config")
        found: list[Any] = []
        if held is not None:
            if not isinstance(held, dict):
                raise c.error("per_layer_config", "is no JSON object")
            given = {int(l): part for l, part in held.items() if l.isdecimal() and isinstance(part, dict)}
            full = [layer for layer, windowed in enumerate(self.windowed()) if not windowed]
            if sorted(given) != full or len(given) < len(held):
                raise c.error("per_layer_config", "is not of the layers without a window alone")
            found = [given[layer][key] for layer in full if key in given[layer]]
            if found and found != found[:1] * len(full):
                raise c.error("per_layer_config", f"has several values of {key!r}")
        if not found:
            return (c.optional_count(other) if other else None) or c.count(key)
        if type(found[0]) is not int or not 0 < found[0] < 1 << 31:
            raise c.error("per_layer_config", f"has the value {found[0]!r} of {key!r}")
        return found[0]

    def feed_forward(self) -> Value:
        c = self.config
        width, last = c.count("intermediate_size"), c.layers - c.count("num_kv_shared_layers", 0)
        wide = 2 if c.flag("use_double_wide_mlp") else 1
        return u32s([width * (1 if layer < last else wide) for layer in range(c.layers)])

    def windowed(self) -> list[bool]:
        found = self.config.windowed or [(layer + 1) % 6 != 0 for layer in range(self.config.layers)]
        return [*found[:-1], False]

    def expert_keys(self) -> dict[str, Value]:
        c = self.config
        if not c.flag("enable_moe_block"):
            for key in ("num_local_experts", "top_k_experts", "moe_intermediate_size"):
                c.get(key)
            return {}
        return {
            "expert_count": u32(c.experts),
            "expert_used_count": u32(c.count("top_k_experts")),
            "expert_feed_forward_length": u32(c.count("moe_intermediate_size")),
        }

    def find_rope(self, kinds: tuple[str, ...]) -> Rope:
        """In full layers the first pairs turn, with frequencies as if all did; in windowed ones all turn."""
        c, size = self.config, self.full("head_dim", "global_head_dim")
        full, sliding = parameters(c)
        share = 0.25 if not full.values else 1.0
        if full.values:
            full.demand("rope_type", ("proportional", "default", None))
            full.demand("factor", (None, 1.0))
            share = full.optional_number("partial_rotary_factor") or 1.0
        turning = int(share * size // 2)
        if not 0 < turning <= size // 2:
            raise c.error("partial_rotary_factor", f"of {share} turns {turning} of {size // 2} pairs")
        if sliding is not None:
            sliding.demand("rope_type", (None, "default"))
            sliding.demand("partial_rotary_factor", (None, 1.0))
        keys = {
            "rope.freq_base": f32(full.optional_number("rope_theta") or 1e6),
            "rope.dimension_count": u32(size),
            "rope.freq_base_swa": f32((sliding.optional_number("rope_theta") if sliding else None) or 1e4),
            "rope.dimension_count_swa": u32(c.head_size),
        }
        divisors = np.where(np.arange(size // 2) < turning, 1.0, STILL).astype(np.float32)
        return Rope(keys, {"rope_freqs.weight": divisors})

    def rules(self) -> Rules:
        found = super().rules()
        if self.input_size():
            stem = prefixed(PER_LAYER_STEM, self.stem_prefix, "")
            found = {**found, **stem, **self.of_layer(PER_LAYER)}
        return {**found, **self.of_layer(EXPERTS)} if self.config.flag("enable_moe_block") else found


class Gemma4Unified(Gemma4):
    """The same without experts and without inputs of the layers' own."""

    hf = names("Gemma4UnifiedForCausalLM", "Gemma4UnifiedForConditionalGeneration")
    defaults = values(
        Gemma4.defaults,
        hidden_size_per_layer_input=None,
        max_position_embeddings=262144,
        sliding_window=1024,
    )
