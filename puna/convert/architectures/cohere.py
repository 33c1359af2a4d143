"""Command R and R7B."""

from __future__ import annotations

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.config import Config
from puna.convert.tables import ATTENTION, GATED, QK_NORMS
from puna.convert.tensors import Rules
from puna.convert.typed import text
from puna.gguf import Value

__all__ = ["Cohere2", "CommandR"]


class CommandR(Architecture):
    """Attention and feed-forward block side by side after one norm; a factor on logits."""

    hf = names("CohereForCausalLM")
    name = "command-r"
    defaults = values(
        attention_bias=False,
        hidden_act="silu",
        layer_norm_eps=1e-5,
        logit_scale=0.0625,
        max_position_embeddings=8192,
        rope_theta=500000.0,
        tie_word_embeddings=True,
        use_qk_norm=False,
    )
    demands = values(attention_bias=(False,), hidden_act=("silu",))
    numbers = values(logit_scale="logit_scale")
    layers = rules(ATTENTION, GATED, {"input_layernorm": "attn_norm"})
    eps = ("attention.layer_norm_epsilon", "layer_norm_eps")
    rope_kinds = names()
    pres = names("command-r", "starcoder")

    def __init__(self, config: Config) -> None:
        # Where it is given, the model was trained on more than max_position_embeddings says.
        longest = config.optional_count("model_max_length")
        if longest is not None:
            config.values["max_position_embeddings"] = longest
        super().__init__(config)

    def rules(self) -> Rules:
        norms = QK_NORMS if self.config.flag("use_qk_norm") else {}
        return {**super().rules(), **self.of_layer(norms)}

    def keys(self) -> dict[str, Value]:
        return {**super().keys(), "rope.scaling.type": text("none")}


class Cohere2(CommandR):
    """Three windowed layers to each full one, which has no positions."""

    hf = names("Cohere2ForCausalLM")
    name = "cohere2"
    defaults = values(CommandR.defaults, rope_theta=10000.0, sliding_window=4096)
    counts = values(vocab_size="vocab_size?")
    demands = values(CommandR.demands, use_qk_norm=(False,))
    windows = True

    def windowed(self) -> list[bool]:
        c = self.config
        every = c.optional_count("sliding_window_pattern") or 4
        return c.windowed or [(layer + 1) % every != 0 for layer in range(c.layers)]
