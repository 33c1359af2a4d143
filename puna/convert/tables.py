"""Modules under the names that most models have, and where they go; an architecture's table starts from these."""

from __future__ import annotations

from puna.convert.changes import first_half, second_half
from puna.convert.tensors import Rule, Rules

__all__ = ["ATTENTION", "EXPERTS", "GATED", "QK_NORMS", "with_bias"]

ATTENTION: Rules = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
QK_NORMS: Rules = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
GATED: Rules = {
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# One matrix an expert, or one tensor of all.
EXPERTS: Rules = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.{e}.gate_proj": "ffn_gate_exps",
    "mlp.experts.{e}.up_proj": "ffn_up_exps",
    "mlp.experts.{e}.down_proj": "ffn_down_exps",
    "mlp.experts.gate_up_proj": (Rule("ffn_gate_exps", first_half), Rule("ffn_up_exps", second_half)),
    "mlp.experts.down_proj": "ffn_down_exps",
}


def with_bias(table: Rules, bias: bool | str, *but: str) -> Rules:
    """The same modules with biases, or with them where a key of config.json says so; `but` have none."""
    return {
        source: Rule(target, bias=bias) if isinstance(target, str) and target not in but else target
        for source, target in table.items()
    }
