"""EXAONE 4."""

from __future__ import annotations

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.tables import ATTENTION, GATED, QK_NORMS

__all__ = ["EXAONE4"]


class EXAONE4(Architecture):
    """Norms after each block alone, and on the heads of q and k; the 32B rotates in windowed layers alone."""

    hf = names("Exaone4ForCausalLM")
    name = "exaone4"
    defaults = values(hidden_act="silu", max_position_embeddings=2048, rms_norm_eps=1e-5, sliding_window=4096)
    demands = values(hidden_act=("silu",))
    counts = values(vocab_size="vocab_size?")
    layers = rules(
        ATTENTION,
        QK_NORMS,
        GATED,
        {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"},
    )
    rope_kinds = names("linear", "llama3")
    windows = True
    pres = names("exaone4", "gpt-2")

    def windowed(self) -> list[bool]:
        c = self.config
        given, pattern = c.windowed, c.get("sliding_window_pattern")
        if c.optional_count("sliding_window") is None:
            return [False] * c.layers
        if isinstance(pattern, str) and pattern:  # such as LLLG: local, global
            return given or [pattern[layer % len(pattern)] == "L" for layer in range(c.layers)]
        every = c.optional_count("sliding_window_pattern") or 4
        return given or [(layer + 1) % every != 0 for layer in range(c.layers)]
