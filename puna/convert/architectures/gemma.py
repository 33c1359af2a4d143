"""Gemma 1 to 3: the text models, alone or out of those that see pictures too."""

from __future__ import annotations

from typing import ClassVar

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.tables import ATTENTION, GATED
from puna.convert.tensors import Rule
from puna.gguf import Value

__all__ = ["Gemma", "Gemma2", "Gemma3"]

TANH = "gelu_pytorch_tanh"


def norm(target: str) -> Rule:
    """Gemma's norms store what is added to 1."""
    return Rule(target, plus=1.0)


class Gemma(Architecture):
    """The output matrix is the embedding; the activation is GELU by tanh, whatever older files call it."""

    hf = names("GemmaForCausalLM")
    name = "gemma"
    defaults = values(
        head_dim=256,
        hidden_act=TANH,
        max_position_embeddings=8192,
        num_key_value_heads=16,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    )
    demands = values(
        attention_bias=(None, False),
        hidden_act=(TANH, "gelu", None),
        use_bidirectional_attention=(None, False),
    )
    stem = rules({"embed_tokens": "token_embd", "norm": norm("output_norm")})
    layers = rules(
        ATTENTION,
        GATED,
        {"input_layernorm": norm("attn_norm"), "post_attention_layernorm": norm("ffn_norm")},
    )
    rope_kinds = names()


class Gemma2(Gemma):
    """Norms before and after each block, soft caps, and a sliding window in every other layer."""

    hf = names("Gemma2ForCausalLM")
    name = "gemma2"
    defaults = values(
        Gemma.defaults,
        num_key_value_heads=4,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        query_pre_attn_scalar=256,
        sliding_window=4096,
    )
    demands = values(
        attention_bias=(None, False), hidden_act=(TANH,), use_bidirectional_attention=(None, False)
    )
    numbers = values(
        attn_logit_softcapping="attn_logit_softcapping", final_logit_softcapping="final_logit_softcapping"
    )
    layers = rules(
        Gemma.layers,
        {
            "post_attention_layernorm": norm("post_attention_norm"),
            "pre_feedforward_layernorm": norm("ffn_norm"),
            "post_feedforward_layernorm": norm("post_ffw_norm"),
        },
    )
    windows = True
    every: ClassVar[int] = 2  # one layer of so many has no window
    largest: ClassVar[int] = 46  # layers of the 27B, whose scores are scaled by its width over its heads

    def keys(self) -> dict[str, Value]:
        c = self.config
        # GGUF has no key for the scale of the scores: readers take it from the size of a head.
        size = c.count("hidden_size") / c.heads if c.layers == self.largest else c.head_size
        if c.number("query_pre_attn_scalar") != size:
            what = f"is {c.number('query_pre_attn_scalar'):g}, and a GGUF file of this architecture means {size:g}"
            raise c.error("query_pre_attn_scalar", what)
        return super().keys()

    def windowed(self) -> list[bool]:
        return self.config.windowed or self.usual()

    def usual(self) -> list[bool]:
        """Which layers have a window where nothing is said."""
        every = self.config.optional_count("sliding_window_pattern") or self.every
        return [(layer + 1) % every != 0 for layer in range(self.config.layers)]

    def window_keys(self) -> dict[str, Value]:
        """The pattern goes without saying unless it is another."""
        keys, layers = super().window_keys(), self.windowed()
        if layers == [(layer + 1) % self.every != 0 for layer in range(len(layers))]:
            keys.pop("attention.sliding_window_pattern", None)
        return keys


class Gemma3(Gemma2):
    """Norms on the heads of q and k, no cap on scores, and RoPE of its own for windowed layers."""

    hf = names("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
    name = "gemma3"
    defaults = values(
        Gemma.defaults,
        max_position_embeddings=131072,
        num_key_value_heads=4,
        num_attention_heads=8,
        query_pre_attn_scalar=256,
        rope_local_base_freq=10000.0,
        rope_theta=1e6,
        sliding_window=4096,
        vocab_size=262208,
    )
    demands = values(Gemma2.demands, attn_logit_softcapping=(None,))
    numbers = values(final_logit_softcapping="final_logit_softcapping?")
    layers = rules(
        Gemma2.layers, {"self_attn.q_norm": norm("attn_q_norm"), "self_attn.k_norm": norm("attn_k_norm")}
    )
    rope_kinds = names("linear")
    every = 6
    largest = 62
