"""Gemma 3n and 4: small ones out of folders of Hugging Face, against transformers' numbers and on both backends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hf_folders import Tensors, byte_level, count, folder, matrix

import puna
from puna.convert import convert
from puna.errors import ModelError
from puna.gguf import GGUFFile, write
from puna.models.registry import build

TOKENS = count(byte_level())
LAYERS, WIDTH, FF, HEADS, HEADS_KV, HEAD, OWN = 4, 32, 48, 4, 2, 8, 8
STREAMS, RANK, EXPERTS, INNER = 3, 4, 4, 16
FIRST_SHARED = 2
KINDS = ["sliding_attention", "full_attention"] * 2
SHAPE: Mapping[str, Any] = {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": OWN,
    "layer_types": KINDS,
    "num_hidden_layers": LAYERS,
    "num_kv_shared_layers": LAYERS - FIRST_SHARED,
    "rms_norm_eps": 1e-6,
    "sliding_window": 8,
    "tie_word_embeddings": True,
    "vocab_size": TOKENS,
    "vocab_size_per_layer_input": TOKENS,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "gemma3n": {
        **SHAPE,
        "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0],
        "altup_num_inputs": STREAMS,
        "architectures": ["Gemma3nForCausalLM"],
        "final_logit_softcapping": 30.0,
        "head_dim": HEAD,
        "intermediate_size": [FF] * LAYERS,
        "laurel_rank": RANK,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "gemma4": {
        **SHAPE,
        "architectures": ["Gemma4ForCausalLM"],
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "final_logit_softcapping": None,
        "global_head_dim": 2 * HEAD,
        "head_dim": HEAD,
        "intermediate_size": FF,
        "moe_intermediate_size": INNER,
        "num_experts": EXPERTS,
        "num_global_key_value_heads": 1,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1e6,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "top_k_experts": 2,
        "use_double_wide_mlp": True,
    },
}
IDS = [(37 * n * n + 11 * n) % TOKENS for n in range(40)]
# The last token's logits of the first 6 ids by transformers 5.24.0, from the same folders.
WANTED: Mapping[str, list[float]] = {
    "gemma3n": [2.031096, -0.355816, -2.288460, 0.642360, 0.497522, -1.476378],
    "gemma4": [0.794752, -1.169549, -0.584817, 1.404434, -1.254436, 0.492893],
}
NORMS = ("input_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
NORMS = (*NORMS, "post_attention_layernorm", "post_per_layer_input_norm")


def attention(name: str, layer: int) -> dict[str, tuple[int, ...]]:
    is_full = name == "gemma4" and KINDS[layer].startswith("full")
    size, heads_kv = (2 * HEAD, 1) if is_full else (HEAD, HEADS_KV)
    found: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (HEADS * size, WIDTH),
        "self_attn.q_norm": (size,),
        "self_attn.o_proj": (WIDTH, HEADS * size),
    }
    if layer < FIRST_SHARED:
        found |= {"self_attn.k_proj": (heads_kv * size, WIDTH), "self_attn.k_norm": (size,)}
        found |= {} if is_full else {"self_attn.v_proj": (heads_kv * size, WIDTH)}
    return found


def gemma3n(layer: int) -> dict[str, tuple[int, ...]]:
    return {
        "altup.correct_output_scale": (WIDTH,),
        "altup.correction_coefs": (STREAMS, STREAMS),
        "altup.prediction_coefs": (STREAMS * STREAMS, STREAMS),
        "altup.modality_router": (STREAMS, WIDTH),
        "altup.router_norm": (WIDTH,),
        "laurel.linear_left": (RANK, WIDTH),
        "laurel.linear_right": (WIDTH, RANK),
        "laurel.post_laurel_norm": (WIDTH,),
    }


def gemma4(layer: int) -> dict[str, tuple[int, ...]]:
    return {
        "layer_scalar": (1,),
        "router.proj": (EXPERTS, WIDTH),
        "router.scale": (WIDTH,),
        "router.per_expert_scale": (EXPERTS,),
        "experts.gate_up_proj": (EXPERTS, 2 * INNER, WIDTH),
        "experts.down_proj": (EXPERTS, WIDTH, INNER),
        "pre_feedforward_layernorm_2": (WIDTH,),
        "post_feedforward_layernorm_1": (WIDTH,),
        "post_feedforward_layernorm_2": (WIDTH,),
    }


BARE = ("scale", "layer_scalar", "experts.gate_up_proj", "experts.down_proj")


def tensors(name: str) -> Tensors:
    """All that a checkpoint has."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens": (TOKENS, WIDTH),
        "embed_tokens_per_layer": (TOKENS, LAYERS * OWN),
        "per_layer_model_projection": (LAYERS * OWN, WIDTH),
        "per_layer_projection_norm": (OWN,),
        "norm": (WIDTH,),
    }
    for n in range(STREAMS - 1 if name == "gemma3n" else 0):
        shapes |= {f"altup_{kind}projections.{n}": (WIDTH, WIDTH) for kind in ("", "unembed_")}
    for layer in range(LAYERS):
        wide = FF * (2 if name == "gemma4" and layer >= FIRST_SHARED else 1)
        held = {**dict.fromkeys(NORMS, (WIDTH,)), **attention(name, layer)}
        held |= {"mlp.gate_proj": (wide, WIDTH), "mlp.up_proj": (wide, WIDTH), "mlp.down_proj": (WIDTH, wide)}
        held |= {"per_layer_input_gate": (OWN, WIDTH), "per_layer_projection": (WIDTH, OWN)}
        held |= {"gemma3n": gemma3n, "gemma4": gemma4}[name](layer)
        shapes |= {f"layers.{layer}.{key}": shape for key, shape in held.items()}
    return {
        f"model.{key}{'' if key.endswith(BARE) else '.weight'}": matrix(key, *shape) + float(len(shape) == 1)
        for key, shape in shapes.items()
    }


@pytest.fixture(scope="module", autouse=True)
def code_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are kept in a folder of these tests."""
    folder = tmp_path_factory.mktemp("code")
    with mock.patch("platformdirs.user_cache_path", return_value=folder):
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The converted models."""
    made, path = {}, tmp_path_factory.mktemp("late")
    for name, config in CONFIGS.items():
        folder(path / name, tensors(name), config=config)
        convert(path / name, path / f"{name}.gguf", outtype="f32")
        made[name] = path / f"{name}.gguf"
    return made


def load(path: Path, backend: str = "reference") -> puna.Model:
    return puna.load(str(path), backend=backend, n_ctx=64, cache_type_k="f32", cache_type_v="f32")


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Normalised mean squared error."""
    return float(np.mean((got - want) ** 2) / np.mean(want**2))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, files: Mapping[str, Path]) -> None:
    """The reference backend gives the recorded numbers, in whatever chunks."""
    model = load(files[name])
    whole = model.logits(IDS)
    np.testing.assert_allclose(whole[-1, :6], WANTED[name], rtol=1e-4, atol=1e-5)
    assert error(model.logits(IDS, batch=7), whole) < 1e-10


@pytest.mark.parametrize("name", CONFIGS)
def test_the_cpu_backend_agrees(name: str, files: Mapping[str, Path]) -> None:
    """Its kernels give the reference's logits, in whatever chunks."""
    wanted, model = load(files[name]).logits(IDS), load(files[name], "cpu")
    assert error(model.logits(IDS), wanted) < 1e-9
    assert error(model.logits(IDS, batch=7), wanted) < 1e-9


def test_tokens_without_an_input_have_zeros(tmp_path: Path) -> None:
    """Where the table of the layers' inputs is shorter than the vocabulary, its last rows are zeros."""
    held = tensors("gemma3n")
    name = "model.embed_tokens_per_layer.weight"
    whole, held[name] = held[name], held[name][:-5]
    path = folder(tmp_path / "x", held, config=CONFIGS["gemma3n"])
    convert(path, tmp_path / "x.gguf", outtype="f32")
    with GGUFFile.open(tmp_path / "x.gguf") as file:
        table = file.data("per_layer_token_embd.weight").view(np.float32)
    assert np.array_equal(table[:-5], whole[:-5])
    assert not table[-5:].any()
    assert len(table) == TOKENS


TABLE = "per_layer_token_embd.weight"
WRONG: Mapping[str, tuple[Mapping[str, Any], int, str]] = {
    "a table with fewer tokens": ({}, TOKENS - 1, rf"'{TABLE}' has shape"),
    "deviations of other layers": ({"activation_sparsity_scale": [1.0] * 3}, TOKENS, "needs 4 numbers"),
    "deviations that are none": (
        {"activation_sparsity_scale": [math.nan] * 4},
        TOKENS,
        "activation_sparsity_scale",
    ),
    "a stream that is not there": (
        {"altup.active_idx": STREAMS},
        TOKENS,
        r"altup\.active_idx.*between 0 and 2",
    ),
    "one stream": ({"altup.num_inputs": 1}, TOKENS, r"altup\.num_inputs.*between 2"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_file_is_told(what: str, files: Mapping[str, Path], tmp_path: Path) -> None:
    """Tables that ids would reach beyond, and keys with impossible values, are errors that name them."""
    keys, rows, message = WRONG[what]
    with GGUFFile.open(files["gemma3n"]) as file:
        metadata = {**file.metadata, **{f"gemma3n.{key}": value for key, value in keys.items()}}
        held = [(name, info, file.data(name)) for name, info in file.tensors.items()]
        cut = {TABLE: rows}
        write(
            tmp_path / "m.gguf",
            metadata,
            [
                (name, info.quant, (cut.get(name, info.shape[0]), *info.shape[1:]), data[: cut.get(name)])
                for name, info, data in held
            ],
        )
    with pytest.raises(ModelError, match=message), GGUFFile.open(tmp_path / "m.gguf") as file:
        build(file)


def test_layers_that_share_have_no_memory(files: Mapping[str, Path]) -> None:
    """The cache has the layers that store keys alone, each with heads of its own."""
    for name, full in (("gemma3n", (HEADS_KV, HEAD, HEAD)), ("gemma4", (1, 2 * HEAD, 2 * HEAD))):
        kv = load(files[name]).plan.kv
        assert kv.widths == {0: (HEADS_KV, HEAD, HEAD), 1: full}
        assert {group.window: group.layers for group in kv.groups} == {8: (0,), 0: (1,)}


@pytest.mark.parametrize("name", CONFIGS)
def test_sharing_needs_an_earlier_layer(name: str, tmp_path: Path) -> None:
    """Layers whose kind has stored nothing before are refused by the key that says so."""
    config = {**CONFIGS[name], "num_kv_shared_layers": 3}
    with pytest.raises(ModelError, match=r"shared_kv_layers.*no earlier layer"):
        convert(folder(tmp_path / "x", tensors(name), config=config), tmp_path / "x.gguf")
