"""Which type each tensor of a model gets: llama.cpp's choices, as tables.

Source: `tensor_allows_quantization`, `llama_tensor_get_type` and `tensor_type_fallback` in llama.cpp's
src/llama-quant.cpp, whose answers for whole models the tests hold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from puna.edit.facts import Facts
from puna.edit.mixes import Mix
from puna.errors import RequestError
from puna.gguf import TensorInfo
from puna.quants import QuantType, by_name

__all__ = ["Choice", "Options", "Role", "choose", "may_change", "role_of"]


class Role(Enum):
    """What a tensor is to the rules."""

    OUTPUT = auto()
    EMBEDDING = auto()
    VALUES = auto()  # attn_v, and tensors that hold it
    KEYS = auto()
    PROJECTION = auto()  # of attention's result
    DOWN = auto()
    OTHER = auto()


NAMES: Mapping[str, Role] = {
    "output.weight": Role.OUTPUT,
    "token_embd.weight": Role.EMBEDDING,
    "per_layer_token_embd.weight": Role.EMBEDDING,
}
# The first that is a part of the name.
PARTS: Mapping[str, Role] = {
    "attn_qkv.weight": Role.VALUES,
    "attn_kv_b.weight": Role.VALUES,
    "attn_v.weight": Role.VALUES,
    "attn_k.weight": Role.KEYS,
    "attn_output.weight": Role.PROJECTION,
    "ffn_down": Role.DOWN,
}
# Matrices that stay as they are: small, or read element by element.
KEPT = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel|per_layer_model_proj"
    r"|^position_embd\.weight$|^token_types\.weight$|ssm_conv1d|shortconv\.conv\.weight"
    r"|indexer\.[kq]_proj\.weight|time_mix_(?:first|[wva][012]|g[12]|decay_w[12]|lerp_fused)\.weight"
    r"|attn_rel_b\.weight|\.position_embd|sam\.(?:pos_embd|neck\.|net_)|\.rel_pos|\.patch_(?:embd|merger)"
    r"|a\.rvq\.codebook|mm\.a\.code_embd"
)
# More of them, and matrices that get Q8_0, in one architecture.
KEPT_BY: Mapping[str, re.Pattern[str]] = {
    "glm5-next": re.compile(
        r"hc_(?:attn|ffn)_|output_hc_|\.indexer|ssm_(?:beta|[fg]_[ab])\.weight|attn_(?:[kv]_b|kv_a_mqa)\.weight"
    )
}
EIGHT_BITS: Mapping[str, re.Pattern[str]] = {"glm5-next": re.compile(r"\.attn_q_[ab]\.weight")}


@dataclass(frozen=True)
class Options:
    """What a user asks for beside the mix.

    pure: the base type for all.  tensor_types: the type of tensors whose name has a match, the first that does.
    output, embedding: the type of these tensors; where the embedding is the output too, `output` is its type unless
    something else says one.  leave_output: output.weight stays as it is.
    """

    pure: bool = False
    tensor_types: tuple[tuple[re.Pattern[str], QuantType], ...] = ()
    output: QuantType | None = None
    embedding: QuantType | None = None
    leave_output: bool = False

    def __post_init__(self) -> None:
        """Raises RequestError where two of them contradict each other."""
        if self.leave_output and self.output:
            what = "output.weight stays as it is, or gets a type"
            raise RequestError(what, where="--leave-output-tensor", fix="leave --output-tensor-type out")


@dataclass(frozen=True)
class Choice:
    """quant: what the tensor becomes.  wanted: what it would be, if its rows were whole blocks of that."""

    tensor: TensorInfo
    quant: QuantType
    wanted: QuantType


@dataclass(frozen=True)
class Place:
    """A tensor's place among `count` of its role, or its layer among those of the model."""

    index: int
    count: int
    facts: Facts


Condition = Callable[[Place], bool]
Rules = Mapping[str, Sequence[tuple[Condition, str]]]  # mix -> the first whose condition holds


def always(_: Place) -> bool:
    return True


def first(count: int) -> Condition:
    return lambda place: place.index < count


def early(share: int) -> Condition:
    """In the first 1 / share of the layers."""
    return lambda place: place.index < place.count // share


def favoured(place: Place) -> bool:
    """In the first or last eighth, or each third layer between: `use_more_bits`."""
    eighth, end = place.count // 8, 7 * place.count // 8
    return place.index < eighth or place.index >= end or (place.index - eighth) % 3 == 2


def grouped(place: Place) -> bool:
    return place.facts.heads_per_key >= 4


def early_with_imatrix(place: Place) -> bool:
    return place.facts.has_imatrix and early(8)(place)


def early_without_imatrix(place: Place) -> bool:
    return not place.facts.has_imatrix and early(8)(place)


RULES: Mapping[Role, Rules] = {
    Role.EMBEDDING: {"TQ1_0": [(always, "Q4_K")], "TQ2_0": [(always, "Q4_K")]},
    Role.VALUES: {
        "Q2_K": [(grouped, "Q4_K"), (always, "Q3_K")],
        "Q2_K_S": [(grouped, "Q4_K")],
        "Q3_K_M": [(first(2), "Q5_K"), (always, "Q4_K")],
        "Q3_K_L": [(always, "Q5_K")],
        "Q4_K_S": [(first(4), "Q5_K")],
        "Q4_K_M": [(favoured, "Q6_K")],
        "Q5_K_M": [(favoured, "Q6_K")],
        "IQ4_NL": [(grouped, "Q5_K")],
        "IQ4_XS": [(grouped, "Q5_K")],
    },
    Role.PROJECTION: {
        "Q2_K": [(always, "Q3_K")],
        "Q3_K_M": [(always, "Q4_K")],
        "Q3_K_L": [(always, "Q5_K")],
    },
    Role.DOWN: {
        "Q4_0": [(early_with_imatrix, "Q4_1")],
        "Q5_0": [(early_with_imatrix, "Q5_1")],
        "Q2_K": [(always, "Q3_K")],
        "Q2_K_S": [(early(8), "Q4_K")],
        "Q3_K_M": [(early(16), "Q5_K"), (always, "Q4_K")],
        "Q3_K_L": [(always, "Q5_K")],
        "Q4_K_S": [(early(8), "Q5_K")],
        "Q4_K_M": [(favoured, "Q6_K")],
        "Q5_K_M": [(favoured, "Q6_K")],
        "IQ4_NL": [(early_without_imatrix, "Q5_K")],
        "IQ4_XS": [(early_without_imatrix, "Q5_K")],
    },
}
# Falcon's, in place of those above.
FALCON: Mapping[Role, Rules] = {
    Role.PROJECTION: {"Q3_K_L": [(always, "Q4_K")]},
    Role.DOWN: {
        **RULES[Role.DOWN],
        "Q3_K_M": [(early(16), "Q5_K"), (favoured, "Q4_K")],
        "Q3_K_L": [(always, "Q4_K")],
        "Q4_K_S": [],
        "Q4_K_M": [(early(16), "Q6_K"), (favoured, "Q5_K")],
    },
}
# In models of eight experts attention is a small part of the whole.
EIGHT_EXPERTS: Mapping[Role, str] = {Role.VALUES: "Q8_0", Role.KEYS: "Q8_0"}
EIGHT_EXPERTS_PROJECTION = frozenset(
    {"Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS"}
)  # these give it Q5_K
# For rows that are no whole blocks of a type; F16 takes any.
FALLBACKS: Mapping[str, str] = {
    "IQ4_XS": "IQ4_NL",
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "TQ1_0": "Q4_0",
    "TQ2_0": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
LAST_RESORT = "F16"


def choose(tensors: Iterable[TensorInfo], mix: Mix, facts: Facts, options: Options) -> list[Choice]:
    """What becomes of each tensor, in llama.cpp's order, which the rules count in."""
    chosen, seen = [], Counter[Role]()
    ordered = in_order(tensors)
    values = sum(role_of(tensor.name) is Role.VALUES for tensor in ordered)
    for tensor in ordered:
        role = role_of(tensor.name)
        wanted = asked_for(tensor, role, mix, facts, options)
        if wanted is None:
            place = place_of(tensor, role, seen[role], values, facts)
            seen[role] += 1
            wanted = by_name(by_rule(tensor, role, mix, place, options))
        chosen.append(Choice(tensor, fitting(wanted, tensor), wanted))
    return chosen


def in_order(tensors: Iterable[TensorInfo]) -> list[TensorInfo]:
    """What belongs to no layer, then layer by layer; by name within."""
    return sorted(tensors, key=lambda tensor: (layer_of(tensor.name), tensor.name))


def layer_of(name: str) -> int:
    found = re.match(r"blk\.([0-9]{1,9})\.", name)
    return int(found[1]) if found else -1


def role_of(name: str) -> Role:
    if name in NAMES:
        return NAMES[name]
    return next((role for part, role in PARTS.items() if part in name), Role.OTHER)


def asked_for(tensor: TensorInfo, role: Role, mix: Mix, facts: Facts, options: Options) -> QuantType | None:
    """The type where no rule of the mix has a say: tensors that stay, and what the options name."""
    if not may_change(tensor, facts, options):
        return tensor.quant
    for asked, held in ((options.embedding, Role.EMBEDDING), (options.output, Role.OUTPUT)):
        if asked and role is held:
            return asked
    for pattern, quant in options.tensor_types:
        if pattern.search(tensor.name):
            return quant
    base = by_name(mix.base)
    return base if options.pure or base.is_float else None


def may_change(tensor: TensorInfo, facts: Facts, options: Options) -> bool:
    """Whether a tensor is a matrix that quantisation is for."""
    if all(size == 1 for size in tensor.shape[:-1]) or not tensor.name.endswith("weight"):
        return False
    if options.leave_output and tensor.name == "output.weight":
        return False
    return not KEPT.search(tensor.name) and not matches(KEPT_BY, tensor, facts)


def matches(table: Mapping[str, re.Pattern[str]], tensor: TensorInfo, facts: Facts) -> bool:
    return facts.architecture in table and bool(table[facts.architecture].search(tensor.name))


def place_of(tensor: TensorInfo, role: Role, index: int, values: int, facts: Facts) -> Place:
    """Values count themselves; others go by the layers, by name where a layer may have several."""
    if role is Role.VALUES:
        return Place(index, values, facts)
    return Place(layer_of(tensor.name) if facts.experts > 1 else index, facts.layers, facts)


def by_rule(tensor: TensorInfo, role: Role, mix: Mix, place: Place, options: Options) -> str:
    """The name of the type that the mix gives a matrix."""
    facts = place.facts
    if role is Role.OUTPUT or (role is Role.EMBEDDING and facts.is_tied):
        return options.output.name if options.output else output_type(tensor, mix, facts)
    if matches(EIGHT_BITS, tensor, facts):
        return "Q8_0"
    if mix.name == "MXFP4_MOE":
        return mix.base if len(tensor.shape) > 2 and tensor.shape[-3] > 1 else "Q8_0"
    if facts.experts == 8 and role in EIGHT_EXPERTS:
        return EIGHT_EXPERTS[role]
    is_falcon = facts.architecture == "falcon"
    if facts.experts == 8 and role is Role.PROJECTION and not is_falcon:
        return "Q5_K" if mix.name in EIGHT_EXPERTS_PROJECTION else mix.base
    rules = (FALCON if is_falcon and role in FALCON else RULES).get(role, {}).get(mix.name, ())
    found = next((name for condition, name in rules if condition(place)), mix.base)
    is_small = facts.is_70b and role is Role.VALUES  # an eighth of attn_q there
    return "Q5_K" if is_small and found in {"Q3_K", "Q4_K"} else found


def output_type(tensor: TensorInfo, mix: Mix, facts: Facts) -> str:
    """The type of the output matrix, or of the embedding where that is the output too."""
    whole = tensor.shape[-1] % by_name(mix.base).block == 0
    if mix.name in {"MXFP4_MOE", "Q8_0"} or facts.architecture == "falcon" or not whole:
        return "Q8_0"
    return "Q6_K"


def fitting(quant: QuantType, tensor: TensorInfo) -> QuantType:
    """The type, or the nearest that takes rows of this length."""
    for name in (quant.name, FALLBACKS.get(quant.name, LAST_RESORT)):
        candidate = by_name(name)
        if tensor.shape[-1] % candidate.block == 0:
            return candidate
    return by_name(LAST_RESORT)
