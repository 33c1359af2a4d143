"""Hugging Face folders: files that are missing, damaged or of another kind, and configurations that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_folders import byte_level, count, folder, llama_tensors, safetensors, write_json

from puna.convert import prepare
from puna.convert.config import Config
from puna.convert.registry import architectures
from puna.errors import FormatError, ModelError, PunaError, RequestError

INDEX = "model.safetensors.index.json"
TOKENS = count(byte_level())


def split_in_two(path: Path) -> Path:
    """A folder whose tensors are in two files, with an index."""
    folder(path)
    tensors = llama_tensors(TOKENS)
    names = sorted(tensors)
    (path / "model.safetensors").unlink()
    held = {}
    for number, part in enumerate((names[:7], names[7:]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        safetensors(path / file, {name: tensors[name] for name in part})
        held |= dict.fromkeys(part, file)
    write_json(path / INDEX, {"weight_map": held})
    return path


def test_a_model_in_parts_is_the_same_model(tmp_path: Path) -> None:
    """One file, an index, and numbered files without an index give the same tensors."""
    one, two = folder(tmp_path / "one"), split_in_two(tmp_path / "two")
    wanted = [(t.name, t.shape) for t in prepare(one, tmp_path / "x.gguf").tensors]
    assert [(t.name, t.shape) for t in prepare(two, tmp_path / "x.gguf").tensors] == wanted
    (two / INDEX).unlink()
    assert [(t.name, t.shape) for t in prepare(two, tmp_path / "x.gguf").tensors] == wanted


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(PunaError) as caught:
        prepare(path, path / "x.gguf", **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    """A part that is not there, a tensor that is not where the index says, and one too many are errors."""
    path = split_in_two(tmp_path / "two")
    held = json.loads((path / INDEX).read_text())["weight_map"]
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    write_json(path / INDEX, {"weight_map": {**held, "model.norm.weight": first}})
    assert f"tensor 'model.norm.weight' is not in {first}" in refusal(path)
    write_json(
        path / INDEX, {"weight_map": {name: file for name, file in held.items() if "norm" not in name}}
    )
    assert f"is not in {INDEX}" in refusal(path)
    write_json(path / INDEX, {"weight_map": held})
    (path / second).unlink()
    assert f"{second}, which {INDEX} names, is missing; finish the download" in refusal(path)
    (path / INDEX).unlink()
    assert f"{second}, which has parts of 2, is missing" in refusal(path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "", "..", "a\\b", 3])
def test_an_index_cannot_lead_out_of_the_folder(tmp_path: Path, name: Any) -> None:
    """Names in the index are names of files in the folder, nothing else."""
    path = split_in_two(tmp_path / "two")
    write_json(path / INDEX, {"weight_map": {"a": name}})
    assert INDEX in refusal(path)


def test_a_tensor_in_two_files_is_an_error(tmp_path: Path) -> None:
    """Numbered files without an index must not hold a tensor twice."""
    path = split_in_two(tmp_path / "two")
    (path / INDEX).unlink()
    safetensors(path / "model-00001-of-00002.safetensors", llama_tensors(TOKENS))
    assert "is also in model-00001-of-00002.safetensors" in refusal(path)


STRANGERS = {
    "pytorch_model.bin": "PyTorch pickles",
    "consolidated.safetensors": "Mistral's own format",
    "x-Q8_0.gguf": "a GGUF file already",
    "readme": "finish the download",
}


@pytest.mark.parametrize("name", STRANGERS)
def test_other_tensors_are_recognised(tmp_path: Path, name: str) -> None:
    """A folder without safetensors is told what it has instead."""
    path = folder(tmp_path / "x")
    (path / "model.safetensors").unlink()
    (path / name).write_bytes(b"")
    assert STRANGERS[name] in refusal(path)


def test_what_is_no_folder(tmp_path: Path) -> None:
    """A missing folder, a file, and a folder without config.json have errors of their own."""
    assert "no such folder" in refusal(tmp_path / "x")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FormatError, match="this is a file"):
        prepare(tmp_path / "file", tmp_path / "x.gguf")
    assert "config.json is missing" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    assert "this is no JSON object" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert "this is no sound JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff")
    assert "byte 0 is not UTF-8" in refusal(tmp_path)


def test_an_unknown_architecture_brings_near_names(tmp_path: Path) -> None:
    """The error names those that are like it; without one it says how to name it."""
    path = folder(tmp_path / "x", config={"architectures": ["LamaForCausalLM"]})
    assert "'LamaForCausalLM', which cannot be converted (nearest: LlamaForCausalLM" in refusal(path)
    assert "'architectures' is missing" in refusal(folder(path, config={"architectures": None}))


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another activation": ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
    "quantised weights": ({"quantization_config": {"bits": 4}}, "before it was quantised"),
    "a window": ({"sliding_window": 8}, "'sliding_window' of 8 is set"),
    "windowed layers": (
        {"layer_types": ["sliding_attention", "full_attention"]},
        "'sliding_window' is missing",
    ),
    "layers of an unknown type": ({"layer_types": ["linear_attention"] * 2}, "'layer_types' is"),
    "too few layer types": ({"layer_types": ["full_attention"]}, "has 1 entries for 2 layers"),
    "a feature of another": ({"final_logit_softcapping": 30.0}, "'final_logit_softcapping' is 30.0"),
    "a count that is no number": ({"num_hidden_layers": "two"}, "'num_hidden_layers' is 'two'"),
    "a count that is true": ({"num_attention_heads": True}, "'num_attention_heads' is true"),
    "a count beyond reason": ({"num_hidden_layers": 10**6}, "over the limit"),
    "a number that is none": ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan"),
    "a missing count": ({"hidden_size": None}, "'hidden_size' is missing"),
    "another vocabulary": ({"vocab_size": 7}, "the embedding has 265 rows, and 'vocab_size' is 7"),
    "heads that do not divide": ({"num_attention_heads": 3}, "which config.json does not explain"),
    "another width": ({"hidden_size": 64, "head_dim": 8}, "tensor 'token_embd.weight' has shape"),
}


@pytest.mark.parametrize("what", CONFIGS)
def test_a_configuration_that_cannot_be_expressed_is_refused(tmp_path: Path, what: str) -> None:
    """Features that GGUF's architecture lacks, and values of the wrong form, are errors that name the key."""
    config, message = CONFIGS[what]
    assert message in refusal(folder(tmp_path / "x", config=config))


def test_unknown_keys_are_told(tmp_path: Path) -> None:
    """A key that says nothing to any architecture is named in a note; an empty one is not."""
    path = folder(tmp_path / "x", config={"my_own_key": 3, "another": None, "use_cache": True})
    assert prepare(path, tmp_path / "x.gguf").notes == (
        "keys of config.json without a meaning here: my_own_key",
    )


def test_the_text_model_of_a_larger_one(tmp_path: Path) -> None:
    """A nested text_config counts, names lose their prefix, and parts for pictures are left out with a note."""
    tensors = {f"language_model.{name}": values for name, values in llama_tensors(TOKENS).items()}
    tensors["vision_tower.patch.weight"] = np.zeros((2, 2), np.float32)
    plain = {"model.embed_tokens.weight": tensors["language_model.model.embed_tokens.weight"]}
    path = folder(tmp_path / "x", plain)
    safetensors(path / "model.safetensors", tensors)
    config = json.loads((path / "config.json").read_text())
    outer = {"architectures": config.pop("architectures"), "text_config": config}
    write_json(path / "config.json", outer)
    found = prepare(path, tmp_path / "x.gguf")
    assert len(found.tensors) == 21
    assert found.notes == (
        "1 tensors of parts that 'llama' has not are left out, such as 'vision_tower.patch.weight'",
    )


def test_options_are_checked(tmp_path: Path) -> None:
    """An unknown type and an unknown pre-tokenizer are refused with the choices."""
    path = folder(tmp_path / "x")
    with pytest.raises(RequestError, match="'q9' is not one of f32, f16, bf16, q8_0, auto"):
        prepare(path, tmp_path / "x.gguf", outtype="q9")
    with pytest.raises(RequestError, match=r"no pre-tokenizer 'qwen'.*qwen2"):
        prepare(path, tmp_path / "x.gguf", pre="qwen")


def test_every_architecture_is_a_sound_table() -> None:
    """Each class is found under its names, and its rules give GGUF names of layers where they are of layers."""
    assert {"LlamaForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM", "Gemma3ForCausalLM"} <= set(
        architectures()
    )
    for name, cls in architectures().items():
        assert cls.name, name
        assert "{l}" in cls.layer_prefix
        with pytest.raises(ModelError, match=r"is missing|is converted for true only"):
            cls(Config({}, "config.json")).keys()
