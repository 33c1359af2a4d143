"""Which type each tensor gets, beside what llama.cpp gives it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from edit_models import MODELS, info

from puna.edit.choice import Choice, Options, choose
from puna.edit.facts import facts_of
from puna.edit.mixes import ALIASES, FILE_TYPES, MIXES, READ_ONLY, find_mix
from puna.errors import RequestError
from puna.gguf import Metadata, Value, ValueType
from puna.quants import by_name

# Recorded from llama_model_quantize of llama.cpp (llama-cpp-python 0.3.36), for each of MODELS: the types of tensors,
# those of all layers in order, as `2*Q6_K Q4_K`; `*` is the type of all matrices that are not named.
RECORDED = json.loads(Path(__file__).with_name("quantize_choices.json").read_text(encoding="utf-8"))


def options(asked: Mapping[str, Any]) -> Options:
    known = {name: by_name(asked[name]) for name in ("output", "embedding") if name in asked}
    patterns = ((re.compile(pattern), by_name(name)) for pattern, name in asked.get("tensor_types", ()))
    flags = {name: True for name in ("pure", "leave_output") if name in asked}
    return Options(tensor_types=tuple(patterns), **known, **flags)


def chosen(model: str, mix: str, asked: Mapping[str, Any]) -> list[Choice]:
    shape = MODELS[model]
    facts = facts_of(shape.metadata, shape.tensors, "imatrix" in asked)
    return choose(shape.tensors.values(), MIXES[mix], facts, options(asked))


def expected(names: Sequence[str], types: Mapping[str, str]) -> Mapping[str, str]:
    """The type of each matrix by its name, in the order of the layers."""
    queues: dict[str, Iterator[str]] = {}
    found = {}
    for name in names:
        kind = re.sub(r"^blk\.\d+\.", "", name)
        if kind in types:
            found[name] = next(queues.setdefault(kind, unrolled(types[kind])))
        else:
            found[name] = types["*"]
    assert all(next(queue, None) is None for queue in queues.values())
    return found


def unrolled(runs: str) -> Iterator[str]:
    for run in runs.split():
        count, _, name = run.rpartition("*")
        yield from [name] * int(count or 1)


def name_of(row: Mapping[str, Any]) -> str:
    return " ".join(map(str, (row["model"], row["mix"], row.get("options", ""))))


@pytest.mark.parametrize("model", MODELS)
def test_choices_are_those_of_llama_cpp(model: str) -> None:
    """For every mix and option each tensor has the type that llama.cpp gave it; vectors and norms stay."""
    rows = [row for row in RECORDED if row["model"] == model]
    assert {row["mix"] for row in rows} == set(MIXES)
    for row in rows:
        choices = chosen(model, row["mix"], row.get("options", {}))
        kept = [c for c in choices if "norm" in c.tensor.name or c.tensor.name.endswith("bias")]
        assert all(choice.quant.name == "F32" for choice in kept)
        found = {choice.tensor.name: choice.quant.name for choice in choices if choice not in kept}
        assert found == expected(list(found), row["types"]), name_of(row)


def test_names_of_mixes() -> None:
    """A mix is found by its name in any case, its alias or its number, as llama-quantize finds it."""
    assert find_mix("q4_k_m") is find_mix("15") is find_mix("Q4_K") is MIXES["Q4_K_M"]
    assert find_mix("0").name == "F32"
    assert all(find_mix(alias).name == name for alias, name in ALIASES.items())
    assert len(FILE_TYPES) == len({mix.file_type for mix in MIXES.values()}) + 13


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Q4_KM", "there is no type 'Q4_KM'; use one of Q4_K_M"),
        ("99", "there is no type '99'; use one of F32, F16"),
        ("", "there is no type ''; use one of F32"),
        (
            "IQ3_XXS",
            "Puna runs files of type IQ3_XXS, but does not make them; the nearest in size that it makes are Q2_K",
        ),
        ("nvfp4", "the nearest in size that it makes are MXFP4_MOE"),
        (
            "Q8_K",
            "Q8_K is a type of tensors, and no mix of llama-quantize's; give it to tensors, as in --tensor-type",
        ),
        ("I8", "I8 is a type of tensors, and no mix of llama-quantize's; use one of F32, F16"),
        ("COPY", "Puna has no COPY, which leaves all tensors as they are; use puna merge"),
        ("19", "Puna runs files of type IQ2_XXS, but does not make them"),
        ("\u0661\u0665", "there is no type"),
    ],
)
def test_other_names(name: str, message: str) -> None:
    """Unknown names bring the nearest; types that Puna only reads are called that."""
    with pytest.raises(RequestError) as error:
        find_mix(name)
    assert message in str(error.value)
    assert str(error.value).startswith("TYPE: ")


def test_every_type_that_is_only_read_has_a_nearest() -> None:
    """One that can be made."""
    for name in READ_ONLY:
        with pytest.raises(RequestError) as error:
            find_mix(name)
        assert error.value.fix
        assert set(error.value.fix.rpartition(" are ")[2].split(", ")) <= MIXES.keys()


def test_float_mixes_take_options() -> None:
    """A type that is asked for by name holds in a float mix too."""
    asked = {"tensor_types": [["ffn_up", "Q8_0"]]}
    found = {choice.tensor.name: choice.quant.name for choice in chosen("llama", "F16", asked)}
    assert found["blk.3.ffn_up.weight"] == "Q8_0"
    assert found["blk.3.ffn_down.weight"] == "F16"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("blk.0.attn_q_norm.weight", True),
        ("blk.0.ffn_gate_inp.weight", True),
        ("blk.0.ssm_conv1d.weight", True),
        ("blk.0.time_mix_w1.weight", True),
        ("blk.0.time_mix_w3.weight", False),
        ("position_embd.weight", True),
        ("blk.0.position_embd.weight", True),
        ("blk.0.attn_q.bias", True),
        ("blk.0.attn_q.weight", False),
        ("v.patch_embd.weight", True),
    ],
)
def test_tensors_that_stay(name: str, kept: bool) -> None:
    """Small matrices and those that are no weights stay as they are, others change."""
    shape = MODELS["llama"]
    facts = facts_of(shape.metadata, shape.tensors)
    (choice,) = choose([info(name, (32, 256))], MIXES["Q8_0"], facts, Options())
    assert choice.quant.name == ("F16" if kept else "Q8_0")
    (row,) = choose([info(name, (1, 256))], MIXES["Q8_0"], facts, Options())
    assert row.quant is row.tensor.quant


def test_fallback_is_known() -> None:
    """What a tensor would be, if its rows were whole blocks, is told beside what it becomes."""
    choices = {choice.tensor.name: choice for choice in chosen("gemma3, rows of 640", "Q4_K_M", {})}
    choice = choices["blk.9.attn_q.weight"]
    assert (choice.wanted.name, choice.quant.name) == ("Q4_K", "Q5_0")
    asked = chosen("gemma3, rows of 640", "F16", {"embedding": "Q3_K"})
    assert {c.quant.name for c in asked if c.tensor.name == "token_embd.weight"} == {"Q4_0"}


def test_heads_that_differ_from_layer_to_layer() -> None:
    """Where heads are listed layer by layer, the first layer's count."""
    keys = {key: MODELS["llama"].metadata.typed(key) for key in MODELS["llama"].metadata}
    keys["llama.attention.head_count"] = Value(ValueType.INT32, [12, 4])
    keys["llama.attention.head_count_kv"] = Value(ValueType.INT32, [3, 0])
    assert facts_of(Metadata.of(keys), ()).heads_per_key == 4
    keys["llama.attention.head_count_kv"] = Value(ValueType.INT32, [0, 3])
    assert facts_of(Metadata.of(keys), ()).heads_per_key == 0
