"""What architectures do beside their tables: how values move, windows, factors, names in several forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from puna.convert import changes
from puna.convert.architecture import Architecture
from puna.convert.config import Config
from puna.convert.registry import architectures
from puna.convert.tensors import as_rules
from puna.errors import ModelError

SHAPE: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "vocab_size": 9,
}


def config(**values: Any) -> Config:
    return Config({**SHAPE, **values}, "config.json")


def of(name: str, **values: Any) -> Architecture:
    return architectures()[name](config(**values))


def plain(architecture: Architecture) -> dict[str, Any]:
    return {key: value.value for key, value in architecture.keys().items()}


def numbered(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape)).reshape(shape)


def test_q_k_and_v_out_of_heads() -> None:
    """Three rows of a head in turn become all of q, all of k, all of v; a bias moves alike."""
    source = numbered(4 * 3 * 8, 32)
    moved = changes.headwise_qkv(source, config())
    bias = changes.headwise_qkv(source[:, 0], config())
    for part in range(3):
        for head in range(4):
            for row in range(8):
                wanted = source[(head * 3 + part) * 8 + row]
                assert np.array_equal(moved[(part * 4 + head) * 8 + row], wanted)
                assert bias[(part * 4 + head) * 8 + row] == wanted[0]


def test_q_k_and_v_out_of_groups() -> None:
    """Two queries, a key and a value of each group become all of q, then k, then v."""
    source = numbered(2 * 4 * 8, 32)  # 2 groups of 2 queries, 1 key, 1 value
    moved = changes.grouped_qkv(source, config()).reshape(8, 8, 32)
    order = [0, 1, 4, 5, 2, 6, 3, 7]  # heads of the source, in the order of q, k, v
    assert np.array_equal(moved, source.reshape(8, 8, 32)[order])


MOVES: Mapping[str, tuple[Callable[..., Any], tuple[int, ...], Callable[[Any], Any]]] = {
    "the first of two": (changes.first_half, (3, 6, 4), lambda x: x[:, :3]),
    "the second of two": (changes.second_half, (6, 4), lambda x: x[3:]),
    "rows as columns": (changes.transposed, (6, 4), lambda x: x.T),
    "a bias beside them": (changes.transposed, (6,), lambda x: x),
    "a row as a vector": (changes.flat, (1, 6), lambda x: x[0]),
}


@pytest.mark.parametrize("what", MOVES)
def test_simple_moves(what: str) -> None:
    """Each gives the very values, in the place that it says."""
    change, shape, wanted = MOVES[what]
    source = numbered(*shape)
    assert np.array_equal(change(source, config()), wanted(source))


def test_windows_are_written_where_they_are_heeded() -> None:
    """The pattern goes without saying where it is the architecture's own, and is written where it is not."""
    gemma = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16}
    keys = plain(of("Gemma2ForCausalLM", **gemma))
    assert keys["attention.sliding_window"] == 16
    assert "attention.sliding_window_pattern" not in keys
    kinds = ["full_attention", "sliding_attention"] * 3
    keys = plain(of("Gemma2ForCausalLM", **gemma, layer_types=kinds))
    assert keys["attention.sliding_window_pattern"] == [False, True] * 3
    keys = plain(of("Olmo3ForCausalLM", sliding_window=16))
    assert keys["attention.sliding_window_pattern"] == [True, True, True, False, True, True]
    keys = plain(of("Exaone4ForCausalLM", sliding_window=16, sliding_window_pattern="LG"))
    assert keys["attention.sliding_window_pattern"] == [True, False] * 3


def test_windows_that_readers_do_not_heed_are_told() -> None:
    """Mistral's first window is written, with a note of what it means; without one there is none."""
    mistral = of("MistralForCausalLM", sliding_window=4096)
    assert plain(mistral)["attention.sliding_window"] == 4096
    assert "readers of 'llama' see all of them" in mistral.notes()[0]
    assert not of("MistralForCausalLM", sliding_window=None).notes()
    late = of("Qwen2ForCausalLM", use_sliding_window=True, sliding_window=8, max_window_layers=4)
    assert plain(late)["attention.sliding_window_pattern"] == [False] * 4 + [True] * 2


def test_factors_keep_their_type() -> None:
    """Granite's factors are float32 under GGUF's names, even where JSON has whole numbers."""
    keys = plain(
        of("GraniteForCausalLM", embedding_multiplier=12, logits_scaling=8, residual_multiplier=0.22)
    )
    names = ("embedding_scale", "logit_scale", "residual_scale", "attention.scale")
    assert [keys[name] for name in names] == [12.0, 8.0, 0.22, 1.0]
    assert all(isinstance(keys[name], float) for name in names)


def test_names_with_and_without_their_prefix() -> None:
    """GPT-2's tensors lie under `transformer.` or by themselves; old buffers and the tied head are left out."""
    gpt2 = of("GPT2LMHeadModel", n_embd=32, n_head=4)
    tensors = ["transformer.h.0.ln_1.weight", "h.0.ln_1.weight", "h.0.attn.bias", "lm_head.weight"]
    own, others = gpt2.names(tensors)
    assert own == dict.fromkeys(tensors[:2], "transformer.h.0.ln_1.weight")
    assert not others
    assert gpt2.rules()["transformer.h.{l}.attn.c_attn"]


def targets(architecture: Architecture) -> set[str]:
    return {rule.target for found in architecture.rules().values() for rule in as_rules(found)}


def test_layers_that_depend_on_the_configuration() -> None:
    """Falcon's second norm, StableLM's norms on heads, Command R's on q and k are there where they should be."""
    old, new = of("FalconForCausalLM"), of("FalconForCausalLM", new_decoder_architecture=True)
    one = of("FalconForCausalLM", new_decoder_architecture=True, num_ln_in_parallel_attn=1)
    assert ["blk.{l}.attn_norm_2" in targets(falcon) for falcon in (old, new, one)] == [False, True, False]
    assert [plain(falcon)["attention.head_count_kv"] for falcon in (old, new)] == [1, 2]
    parallel = of("StableLmForCausalLM", use_parallel_residual=True, qk_layernorm=True)
    assert "blk.{l}.ffn_norm" in targets(of("StableLmForCausalLM"))
    assert "blk.{l}.ffn_norm" not in targets(parallel)
    assert "blk.{l}.attn_q_norm" in targets(parallel)
    assert "blk.{l}.attn_q_norm" in targets(of("CohereForCausalLM", use_qk_norm=True))
    assert plain(of("CohereForCausalLM", model_max_length=131072))["context_length"] == 131072


REFUSED: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "a scale that GGUF does not say": (
        "Gemma3ForCausalLM",
        {"head_dim": 8, "query_pre_attn_scalar": 256},
        "a GGUF file of this architecture means 8",
    ),
    "positions in other layers": ("SmolLM3ForCausalLM", {"no_rope_layers": [1] * 6}, "not each fourth layer"),
    "experts in some layers": (
        "Qwen3MoeForCausalLM",
        {"norm_topk_prob": True, "mlp_only_layers": [0]},
        r"\[0\]",
    ),
    "weights that do not sum to 1": ("Qwen3MoeForCausalLM", {"norm_topk_prob": False}, "for true only"),
    "ALiBi": ("FalconForCausalLM", {"alibi": True}, "'alibi' is true"),
    "inner values of which none count": (
        "Gemma3nForCausalLM",
        {"activation_sparsity_pattern": [0.5] * 5 + [1.0]},
        "'activation_sparsity_pattern' holds a share",
    ),
    "widths of other layers": ("Gemma3nForCausalLM", {"intermediate_size": [48] * 5}, "no list of 6 values"),
    "full layers of several sizes": (
        "Gemma4ForCausalLM",
        {
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "per_layer_config": {"1": {"head_dim": 8}, "3": {"head_dim": 8}, "5": {"head_dim": 16}},
        },
        "several values of 'head_dim'",
    ),
    "windowed layers of another size": (
        "Gemma4ForCausalLM",
        {"per_layer_config": {"0": {"head_dim": 8}, "5": {"head_dim": 8}}},
        "not of the layers without a window alone",
    ),
    "no RoPE parameters": ("Ministral3ForCausalLM", {}, "'rope_parameters' is missing"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_variants_that_gguf_does_not_have_are_refused(what: str) -> None:
    """A configuration that the architecture's readers would take for another is an error that names the key."""
    name, values, message = REFUSED[what]
    with pytest.raises(ModelError, match=message):
        of(name, **values).keys()


def test_gemma_4_says_its_sizes_in_two_ways() -> None:
    """Full layers' heads have a name of their own in older files, and are said of each layer in newer ones."""
    old = {"global_head_dim": 16, "num_global_key_value_heads": 1}
    new = {"per_layer_config": {"05": {"head_dim": 16, "num_key_value_heads": 1}}}
    for form in (old, new):
        keys = plain(of("Gemma4ForCausalLM", head_dim=8, attention_k_eq_v=True, **form))
        assert [keys[f"attention.{name}"] for name in ("key_length", "key_length_swa")] == [16, 8]
        assert keys["attention.head_count_kv"] == [2] * 5 + [1]
        assert [keys[f"rope.dimension_count{end}"] for end in ("", "_swa")] == [16, 8]
    turning = of("Gemma4ForCausalLM", head_dim=8, **old).tensors()["rope_freqs.weight"]
    assert turning.tolist() == np.array([1.0] * 2 + [1e30] * 6, np.float32).tolist()


def test_ministral_3_carries_its_temperature() -> None:
    """YaRN's weight and the growth of the temperature have keys of their own."""
    yarn = {
        "type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 16,
        "llama_4_scaling_beta": 0.1,
    }
    keys = plain(of("Ministral3ForCausalLM", rope_parameters={**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}))
    assert keys["attention.temperature_scale"] == 0.1
    assert keys["rope.scaling.yarn_log_multiplier"] == 1.0
    assert "rope.scaling.attn_factor" not in keys
