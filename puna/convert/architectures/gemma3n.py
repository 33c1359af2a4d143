"""Gemma 3n: the text model, alone or out of that which sees and hears too."""

from __future__ import annotations

import math
import re
from statistics import NormalDist
from typing import Any

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.architectures.gemma import TANH
from puna.convert.tables import ATTENTION, GATED
from puna.convert.tensors import Rule, Rules
from puna.convert.typed import f32s, u32s
from puna.gguf import Value

__all__ = ["LATE_KEYS", "NORMS", "PER_LAYER", "PER_LAYER_STEM", "Gemma3n"]

# The last layers share the keys of earlier ones; checkpoints may have matrices for them, which are not used.
LATE_KEYS: Rules = {
    "self_attn.k_proj": Rule("attn_k", optional=True),
    "self_attn.v_proj": Rule("attn_v", optional=True),
    "self_attn.k_norm": Rule("attn_k_norm", optional=True),
}
PER_LAYER_STEM: Rules = {
    "embed_tokens_per_layer": Rule("per_layer_token_embd", rows="vocab_size"),
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}
PER_LAYER: Rules = {
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}
NORMS: Rules = {
    "self_attn.q_norm": "attn_q_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
STREAMS = re.compile(r"(altup_(?:unembed_)?projections)\.(?=\d)")


class Gemma3n(Architecture):
    """AltUp's matrices are one tensor, with one for each stream but the first."""

    hf = names("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration")
    name = "gemma3n"
    defaults = values(
        altup_active_idx=0,
        altup_num_inputs=4,
        final_logit_softcapping=30.0,
        head_dim=256,
        hidden_act=TANH,
        hidden_size_per_layer_input=256,
        max_position_embeddings=32768,
        num_key_value_heads=2,
        num_kv_shared_layers=15,
        rms_norm_eps=1e-6,
        rope_local_base_freq=10000.0,
        rope_theta=1e6,
        sliding_window=512,
        tie_word_embeddings=True,
        vocab_size=262400,
    )
    demands = values(
        altup_correct_scale=(None, True),
        attention_bias=(None, False),
        hidden_act=(TANH,),
        use_bidirectional_attention=(None, False),
    )
    counts = values(
        {
            "altup.active_idx": "altup_active_idx",
            "altup.num_inputs": "altup_num_inputs",
            "attention.shared_kv_layers": "num_kv_shared_layers",
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        }
    )
    numbers = values(final_logit_softcapping="final_logit_softcapping")
    stem = rules(
        Architecture.stem,
        PER_LAYER_STEM,
        {
            "altup_projections.{l}.{e}": Rule("altup_proj", stack="altups"),
            "altup_unembed_projections.{l}.{e}": Rule("altup_unembd_proj", stack="altups"),
        },
    )
    layers = rules(
        ATTENTION,
        LATE_KEYS,
        GATED,
        NORMS,
        PER_LAYER,
        {
            "altup.correct_output_scale": "altup_correct_scale",
            "altup.correction_coefs": "altup_correct_coef",
            "altup.modality_router": "altup_router",
            "altup.prediction_coefs": "altup_predict_coef",
            "altup.router_norm": "altup_router_norm",
            "laurel.linear_left": "laurel_l",
            "laurel.linear_right": "laurel_r",
            "laurel.post_laurel_norm": "laurel_post_norm",
        },
    )
    rope_kinds = names()
    windows = True

    def keys(self) -> dict[str, Value]:
        for key in ("altup_coef_clip", "laurel_rank", "vocab_size_per_layer_input"):
            self.config.get(key)  # for training alone, or told by the tensors
        return {**super().keys(), "activation_sparsity_scale": f32s(self.sparsity())}

    def feed_forward(self) -> Value:
        key, held = "intermediate_size", self.config.get("intermediate_size")
        if not isinstance(held, list):
            return super().feed_forward()
        widths = self.of_each(key, held)
        if not all(isinstance(width, int) and 0 < width < 1 << 31 for width in widths):
            raise self.config.error(key, "holds something else than whole numbers from 1 on")
        return u32s(widths)

    def of_each(self, key: str, held: Any) -> list[Any]:
        """A value for each layer."""
        if not isinstance(held, list) or len(held) != self.config.layers:
            raise self.config.error(key, f"is no list of {self.config.layers} values, one a layer")
        return held

    def sparsity(self) -> list[float]:
        """Deviations above the mean that let as many pass as the pattern says; -inf for all."""
        key, layers = "activation_sparsity_pattern", self.config.layers
        held = self.config.get(key)
        if held is None:
            sparse = 10 if layers > 10 else 0
            held = [0.95] * sparse + [0.0] * (layers - sparse)
        shares = [self.config.checked(key, share) for share in self.of_each(key, held)]
        if not all(0.0 <= share < 1.0 for share in shares):
            raise self.config.error(key, "holds a share that is not from 0 to below 1")
        return [NormalDist().inv_cdf(share) if share else -math.inf for share in shares]

    def windowed(self) -> list[bool]:
        layers = range(self.config.layers)
        return self.config.windowed or [(layer + 1) % 5 != 0 for layer in layers]

    def renamed(self, name: str) -> str:
        """A stream's number is that of a part, not of a layer."""
        return STREAMS.sub(r"\1.0.", name)
