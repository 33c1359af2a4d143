"""Llama with something left out: SmolLM 3, Arcee."""

from __future__ import annotations

from puna.convert.architecture import names, rules, values
from puna.convert.architectures.llama import TURNED, Llama
from puna.gguf import Value

__all__ = ["Arcee", "SmolLM3"]


class Arcee(Llama):
    """Llama with squared ReLU in place of a gate."""

    hf = names("ArceeForCausalLM")
    name = "arcee"
    defaults = values(hidden_act="relu2", max_position_embeddings=4096, rms_norm_eps=1e-5)
    demands = values(hidden_act=("relu2",), mlp_bias=(None, False))
    layers = rules(TURNED, {"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"})
    rope_kinds = names("linear", "yarn", "dynamic", "llama3")
    pres = names("llama-bpe")


class SmolLM3(Llama):
    """Llama without rotary positions in each fourth layer."""

    hf = names("SmolLM3ForCausalLM")
    name = "smollm3"
    defaults = values(
        hidden_act="silu",
        max_position_embeddings=32768,
        num_key_value_heads=4,
        rms_norm_eps=1e-6,
        rope_theta=2e6,
        tie_word_embeddings=True,
        use_sliding_window=False,
    )
    demands = values(
        Llama.demands, no_rope_layer_interval=(None, 4), use_sliding_window=(False,), mlp_bias=(None, False)
    )
    rope_kinds = names("linear", "yarn", "dynamic")
    pres = names("llama-bpe")

    def keys(self) -> dict[str, Value]:
        c = self.config
        rotated = c.get("no_rope_layers")  # 1 where a layer is rotated
        if rotated not in (None, [int((layer + 1) % 4 != 0) for layer in range(c.layers)]):
            raise c.error("no_rope_layers", "is not each fourth layer, as GGUF's readers have it")
        return super().keys()
