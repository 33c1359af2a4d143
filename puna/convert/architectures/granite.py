"""Granite, dense and with experts: Llama with factors on embeddings, blocks, scores and logits."""

from __future__ import annotations

from puna.convert.architecture import names, rules, values
from puna.convert.architectures.llama import TURNED, Llama
from puna.convert.changes import first_half, second_half
from puna.convert.tensors import Rule, Rules

__all__ = ["Granite", "GraniteMoE", "GraniteMoEShared"]


class Granite(Llama):
    """The factors stand under other names in GGUF."""

    hf = names("GraniteForCausalLM")
    name = "granite"
    numbers = values(
        **{
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "logit_scale": "logits_scaling",
            "residual_scale": "residual_multiplier",
        }
    )
    defaults = values(
        Llama.defaults,
        attention_multiplier=1.0,
        embedding_multiplier=1.0,
        logits_scaling=1.0,
        residual_multiplier=1.0,
    )
    rope_kinds = names("linear", "yarn", "dynamic")
    pres = names("refact", "starcoder", "dbrx")


class GraniteMoE(Granite):
    """Experts whose gates and ups come as one matrix."""

    hf = names("GraniteMoeForCausalLM")
    name = "granitemoe"
    defaults = values(Granite.defaults, num_experts_per_tok=2, num_local_experts=8)
    layers = rules(
        TURNED,
        {
            "block_sparse_moe.router.layer": "ffn_gate_inp",
            "block_sparse_moe.input_linear": (
                Rule("ffn_gate_exps", first_half),
                Rule("ffn_up_exps", second_half),
            ),
            "block_sparse_moe.output_linear": "ffn_down_exps",
        },
    )


class GraniteMoEShared(GraniteMoE):
    """One more expert, which all tokens take."""

    hf = names("GraniteMoeSharedForCausalLM")
    counts = values(Llama.counts, expert_shared_feed_forward_length="shared_intermediate_size")
    defaults = values(GraniteMoE.defaults, shared_intermediate_size=0)

    def rules(self) -> Rules:
        shared: Rules = {
            "shared_mlp.input_linear": (
                Rule("ffn_gate_shexp", first_half),
                Rule("ffn_up_shexp", second_half),
            ),
            "shared_mlp.output_linear": "ffn_down_shexp",
        }
        has_one = self.config.count("shared_intermediate_size", least=0) > 0
        return {**super().rules(), **self.of_layer(shared if has_one else {})}
