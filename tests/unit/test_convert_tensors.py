"""Tensors of a converted file: their names, types and values, computed here one number at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_folders import (
    FF,
    HEAD,
    HEADS,
    HEADS_KV,
    LAYERS,
    WIDTH,
    Tensors,
    bf16,
    byte_level,
    count,
    folder,
    llama_tensors,
    matrix,
    safetensors,
)

import puna
from puna.convert import convert
from puna.errors import ModelError, PunaError, RequestError
from puna.gguf import GGUFFile
from puna.quants import dequantize

TOKENS = count(byte_level())
PLAIN = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.1.input_layernorm": "blk.1.attn_norm",
    "model.layers.1.self_attn.v_proj": "blk.1.attn_v",
    "model.layers.1.self_attn.o_proj": "blk.1.attn_output",
    "model.layers.1.post_attention_layernorm": "blk.1.ffn_norm",
    "model.layers.1.mlp.gate_proj": "blk.1.ffn_gate",
    "model.layers.1.mlp.up_proj": "blk.1.ffn_up",
    "model.layers.1.mlp.down_proj": "blk.1.ffn_down",
}


def converted(path: Path, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The values of each tensor of the converted folder, as float32."""
    out = path.parent / f"{path.name}.gguf"
    convert(path, out, **{"outtype": "f32", **options})
    with GGUFFile.open(out) as file:
        return {name: dequantize(t.quant, file.data(name)) for name, t in file.tensors.items()}


def types(path: Path) -> dict[str, str]:
    with GGUFFile.open(path) as file:
        return {name: tensor.quant.name for name, tensor in file.tensors.items()}


def test_names_and_values(tmp_path: Path) -> None:
    """Every weight is there under GGUF's name, and those that need no change are the same."""
    tensors = llama_tensors(TOKENS)
    found = converted(folder(tmp_path / "x", tensors))
    assert len(found) == len(tensors) == 3 + 9 * LAYERS
    for source, name in PLAIN.items():
        assert np.array_equal(found[f"{name}.weight"], tensors[f"{source}.weight"]), name


def test_pairs_of_q_and_k_lie_side_by_side(tmp_path: Path) -> None:
    """Row i and row i + half of a head become rows 2i and 2i + 1; biases move alike."""
    tensors = llama_tensors(TOKENS)
    rows = {"q": HEADS * HEAD, "k": HEADS_KV * HEAD, "v": HEADS_KV * HEAD, "o": WIDTH}
    for layer in range(LAYERS):
        for name, size in rows.items():
            source = f"model.layers.{layer}.self_attn.{name}_proj.bias"
            tensors[source] = matrix(source, size)
    found = converted(folder(tmp_path / "x", tensors, config={"attention_bias": True}))
    for name in ("q", "k"):
        for end in ("weight", "bias"):
            source = tensors[f"model.layers.0.self_attn.{name}_proj.{end}"]
            moved = found[f"blk.0.attn_{name}.{end}"]
            for head in range(rows[name] // HEAD):
                for pair in range(HEAD // 2):
                    at = head * HEAD
                    assert np.array_equal(moved[at + 2 * pair], source[at + pair])
                    assert np.array_equal(moved[at + 2 * pair + 1], source[at + pair + HEAD // 2])
    assert np.array_equal(found["blk.1.attn_output.bias"], tensors["model.layers.1.self_attn.o_proj.bias"])


def mixture(experts: int) -> Tensors:
    """A Mixtral's tensors."""
    tensors = {name: v for name, v in llama_tensors(TOKENS).items() if ".mlp." not in name}
    for layer in range(LAYERS):
        block = f"model.layers.{layer}.block_sparse_moe"
        tensors[f"{block}.gate.weight"] = matrix(f"{block}.gate", experts, WIDTH)
        for expert in range(experts):
            for name, shape in (("w1", (FF, WIDTH)), ("w2", (WIDTH, FF)), ("w3", (FF, WIDTH))):
                source = f"{block}.experts.{expert}.{name}"
                tensors[f"{source}.weight"] = matrix(source, *shape)
    return tensors


MIXTRAL = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 11, "sliding_window": None}


def test_experts_are_stacked_by_their_numbers(tmp_path: Path) -> None:
    """Eleven experts become one tensor each for gate, up and down, the tenth after the ninth."""
    tensors = mixture(11)
    found = converted(folder(tmp_path / "x", tensors, config=MIXTRAL))
    assert found["blk.1.ffn_gate_exps.weight"].shape == (11, FF, WIDTH)
    for name, weight in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
        for expert in range(11):
            source = f"model.layers.1.block_sparse_moe.experts.{expert}.{weight}.weight"
            assert np.array_equal(found[f"blk.1.ffn_{name}_exps.weight"][expert], tensors[source])


def test_experts_that_come_stacked(tmp_path: Path) -> None:
    """One tensor of all gates and ups is cut in two: the same file as from single experts."""
    tensors = mixture(3)
    config = {**MIXTRAL, "num_local_experts": 3}
    wanted = converted(folder(tmp_path / "x", tensors, config=config))
    stacked = {name: values for name, values in tensors.items() if "block_sparse_moe" not in name}
    for layer in range(LAYERS):
        old, new = f"model.layers.{layer}.block_sparse_moe", f"model.layers.{layer}.mlp"
        parts = {
            w: np.stack([tensors[f"{old}.experts.{e}.{w}.weight"] for e in range(3)])
            for w in ("w1", "w2", "w3")
        }
        stacked[f"{new}.gate.weight"] = tensors[f"{old}.gate.weight"]
        stacked[f"{new}.experts.gate_up_proj"] = np.concatenate([parts["w1"], parts["w3"]], 1)
        stacked[f"{new}.experts.down_proj"] = parts["w2"]
    found = converted(folder(tmp_path / "y", stacked, config=config))
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_gemmas_norms_gain_one(tmp_path: Path) -> None:
    """A norm's weight is stored without its 1, and the tied output matrix is left out."""
    tensors = llama_tensors(TOKENS)
    del tensors["lm_head.weight"]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            tensors[f"{prefix}{name}.weight"] = matrix(name, WIDTH)
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            tensors[f"{prefix}{name}.weight"] = matrix(name, HEAD)
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "head_dim": HEAD,
        "hidden_act": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": HEAD,
        "sliding_window": 16,
        "tie_word_embeddings": True,
    }
    found = converted(folder(tmp_path / "x", tensors, config=config, dtype="BF16"))
    norms = [name for name in found if "norm" in name]
    assert len(norms) == 1 + 6 * LAYERS
    source = (bf16(tensors["model.layers.1.self_attn.q_norm.weight"]).astype(np.uint32) << 16).view(
        np.float32
    )
    assert np.array_equal(found["blk.1.attn_q_norm.weight"], source + np.float32(1))
    assert "output.weight" not in found
    assert "blk.1.ffn_norm.weight" in found


@pytest.mark.parametrize("stored", ["F32", "F16", "BF16", "F64"])
@pytest.mark.parametrize(
    ("outtype", "kind"), [("f32", "F32"), ("f16", "F16"), ("bf16", "BF16"), ("q8_0", "Q8_0")]
)
def test_types(tmp_path: Path, stored: str, outtype: str, kind: str) -> None:
    """Matrices get the type asked for, vectors stay F32, and values are the nearest that the type has."""
    tensors = llama_tensors(TOKENS)
    out = tmp_path / "x.gguf"
    found = converted(folder(tmp_path / "x", tensors, dtype=stored), outtype=outtype)
    assert {types(out)["blk.0.ffn_up.weight"], types(out)["token_embd.weight"]} == {kind}
    assert types(out)["blk.0.attn_norm.weight"] == "F32"
    coarse = "BF16" in (stored, kind)
    for source, name in PLAIN.items():
        off = np.abs(found[f"{name}.weight"] - tensors[f"{source}.weight"]).max()
        assert off <= 4 * (2**-8 if coarse or kind == "Q8_0" else 2**-11), name
    if kind == stored:
        assert np.array_equal(bits(found["output.weight"], stored), bits(tensors["lm_head.weight"], stored))


def bits(values: np.ndarray[Any, Any], stored: str) -> np.ndarray[Any, Any]:
    return bf16(values) if stored == "BF16" else values.astype({"F32": "<f4", "F16": "<f2"}[stored])


@pytest.mark.parametrize(
    ("stored", "kind", "number"), [("BF16", "BF16", 32), ("F16", "F16", 1), ("F32", "F16", 1)]
)
def test_auto_is_the_nearest_type_of_16_bits(tmp_path: Path, stored: str, kind: str, number: int) -> None:
    """auto keeps 16-bit types and makes float16 of the rest; general.file_type says so."""
    converted(folder(tmp_path / "x", dtype=stored), outtype="auto")
    assert types(tmp_path / "x.gguf")["output.weight"] == kind
    with GGUFFile.open(tmp_path / "x.gguf") as file:
        assert file.metadata["general.file_type"] == number


def test_rows_that_fill_no_block_stay_f16(tmp_path: Path) -> None:
    """With q8_0, a matrix whose rows are no multiple of 32 is F16; the router of experts is F32."""
    tensors = {name: values for name, values in mixture(2).items() if ".w2." not in name}
    odd = FF - 8
    for layer in range(LAYERS):
        for expert in range(2):
            block = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
            tensors[f"{block}.w2.weight"] = matrix(block, WIDTH, odd)
            for name in ("w1", "w3"):
                tensors[f"{block}.{name}.weight"] = matrix(block + name, odd, WIDTH)
    config = {**MIXTRAL, "num_local_experts": 2, "intermediate_size": odd}
    converted(folder(tmp_path / "x", tensors, config=config), outtype="q8_0")
    found = types(tmp_path / "x.gguf")
    assert found["blk.0.ffn_down_exps.weight"] == "F16"
    assert found["blk.0.ffn_gate_exps.weight"] == "Q8_0"
    assert found["blk.0.ffn_gate_inp.weight"] == "F32"


def test_a_value_too_large_names_its_tensor(tmp_path: Path) -> None:
    """A float32 beyond float16 is an error with the tensor's name, and no file is left."""
    tensors = llama_tensors(TOKENS)
    tensors["lm_head.weight"][3, 3] = 1e6
    with pytest.raises(
        RequestError, match=r"'lm_head.weight': a value is too large for F16; use BF16 or F32"
    ):
        converted(folder(tmp_path / "x", tensors), outtype="f16")
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a missing matrix": ({"model.layers.1.mlp.up_proj.weight": None}, "up_proj.weight'.*is missing"),
    "a missing norm": ({"model.norm.weight": None}, "'model.norm.weight'.*is missing"),
    "no output matrix": ({"lm_head.weight": None}, "'lm_head.weight'.*is missing"),
    "a tensor of another model": ({"model.ln_f.weight": matrix("x", 3)}, "'model.ln_f.weight' has no place"),
    "an unexpected bias": ({"model.layers.0.mlp.up_proj.bias": matrix("x", FF)}, "has no place"),
    "a layer too many": (
        {"model.layers.2.input_layernorm.weight": matrix("x", 3)},
        "'num_hidden_layers' is 2",
    ),
    "a layer of endless digits": ({f"model.layers.{'9' * 5000}.x.weight": matrix("x", 3)}, "has no place"),
    "the wrong shape": ({"model.layers.0.mlp.up_proj.weight": matrix("x", FF, 3)}, "has shape"),
    "too many dimensions": ({"model.norm.weight": np.ones((1, 1, 1, 1, 1), np.float32)}, "5 dimensions"),
    "nothing in it": ({"model.norm.weight": np.ones((0,), np.float32)}, "a dimension is at least 1"),
    "no shape": ({"model.norm.weight": np.ones((), np.float32)}, "0 dimensions"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, what: str) -> None:
    """What is missing, left over or misshapen is an error before anything is written."""
    changes, message = FAULTS[what]
    path, tensors = folder(tmp_path / "x"), {**llama_tensors(TOKENS), **changes}
    safetensors(path / "model.safetensors", {name: v for name, v in tensors.items() if v is not None})
    with pytest.raises(PunaError, match=message):
        converted(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("removed", "message"), [("experts.1.w2", "experts.1.w2.weight.*is missing")])
def test_missing_experts_are_refused(tmp_path: Path, removed: str, message: str) -> None:
    """A hole in a stack, and another number than config.json's, are errors."""
    tensors = {name: values for name, values in mixture(3).items() if removed not in name}
    with pytest.raises(ModelError, match=message):
        converted(folder(tmp_path / "x", tensors, config={**MIXTRAL, "num_local_experts": 3}))
    with pytest.raises(ModelError, match=r"3 experts for .*config.json says 2"):
        converted(folder(tmp_path / "y", mixture(3), config={**MIXTRAL, "num_local_experts": 2}))


def test_integers_are_no_weights(tmp_path: Path) -> None:
    """A weight of whole numbers is refused, whatever its shape."""
    path = folder(tmp_path / "x")
    safetensors(path / "model.safetensors", llama_tensors(TOKENS), "I64")
    with pytest.raises(ModelError, match=r"is of type I64.*give the model in float32"):
        converted(path)


def test_buffers_are_no_weights(tmp_path: Path) -> None:
    """RoPE's frequencies, which some checkpoints hold, are left out without a word."""
    tensors = {**llama_tensors(TOKENS), "model.layers.0.self_attn.rotary_emb.inv_freq": matrix("x", 4)}
    assert len(converted(folder(tmp_path / "x", tensors))) == 3 + 9 * LAYERS


def test_the_file_runs(tmp_path: Path) -> None:
    """Puna computes from the converted file, quantised or not, and the two are close."""
    path = folder(tmp_path / "x")
    ids, logits = list(range(20)), []
    for outtype in ("f32", "q8_0"):
        out = tmp_path / f"{outtype}.gguf"
        convert(path, out, outtype=outtype)
        logits.append(puna.load(str(out), backend="reference").logits(ids))
    assert logits[0].shape == (20, TOKENS)
    off = np.mean((logits[0] - logits[1]) ** 2) / np.mean(logits[0] ** 2)
    assert 0 < off < 1e-3
