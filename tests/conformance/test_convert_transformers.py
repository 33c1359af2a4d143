"""Converted models against transformers itself: random weights, saved on the spot, the same logits and ids."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import puna
from puna.convert import convert
from puna.convert.architectures.t5 import T5Encoder
from puna.convert.config import Config
from puna.convert.registry import architectures
from puna.errors import ModelError

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

LARGEST_ERROR = 1e-6  # normalised mean squared error
TOKENS = 256
BASE: Mapping[str, Any] = {
    "vocab_size": TOKENS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
OLD: Mapping[str, Any] = {"vocab_size": TOKENS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
SQUARE = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
MINISTRAL = {**YARN, "rope_theta": 1e6, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * n for n in range(8)],
    "long_factor": [2.0 + n for n in range(8)],
}
FULL, SLIDING = (
    {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    {"rope_type": "default", "rope_theta": 1e4},
)
LAYERED = {"full_attention": FULL, "sliding_attention": SLIDING}
MOE = {"moe_intermediate_size": 48, "num_experts": 6, "num_experts_per_tok": 2}
GRANITE = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}
LATE = {"sliding_window": 16, "head_dim": 32, "hidden_size_per_layer_input": 16, "num_hidden_layers": 7}
LATE |= {"vocab_size_per_layer_input": TOKENS, "num_kv_shared_layers": 3}
LATE |= {
    "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding") * 2] + ["full_attention"]
}
GEMMA3N = {**LATE, "laurel_rank": 8, "activation_sparsity_pattern": [0.9, 0.5, 0.3] + [0.0] * 4}
GEMMA4 = {**LATE, "global_head_dim": 48, "final_logit_softcapping": 30.0, "use_double_wide_mlp": True}
GEMMA4_MOE = {"sliding_window": 16, "head_dim": 32, "global_head_dim": 64, "hidden_size_per_layer_input": 0}
GEMMA4_MOE |= {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "moe_intermediate_size": 48}
GEMMA4_MOE |= {"num_experts": 6, "top_k_experts": 2, "enable_moe_block": True, "num_hidden_layers": 7}
FALCON = {"vocab_size": TOKENS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
FALCON |= {"activation": "gelu_pytorch_tanh"}
NEW_FALCON = {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True}

# Name -> class of the model, the base of its configuration and what differs from that.
CASES: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "llama": ("LlamaForCausalLM", BASE, {}),
    "llama-3": ("LlamaForCausalLM", BASE, {"rope_scaling": LLAMA3, "tie_word_embeddings": True}),
    "llama-biases": ("LlamaForCausalLM", BASE, {"attention_bias": True, "mlp_bias": True, "head_dim": 32}),
    "llama-linear": ("LlamaForCausalLM", BASE, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama-yarn": (
        "LlamaForCausalLM",
        BASE,
        {"rope_scaling": {**YARN, "attention_factor": 1.3, "beta_fast": 16.0}},
    ),
    "llama-dynamic": ("LlamaForCausalLM", BASE, {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
    "mistral": ("MistralForCausalLM", BASE, {"sliding_window": None}),
    "mixtral": ("MixtralForCausalLM", BASE, {"num_local_experts": 11}),
    "ministral-3": ("Ministral3ForCausalLM", BASE, {"head_dim": 32, "rope_parameters": MINISTRAL}),
    "qwen2": ("Qwen2ForCausalLM", BASE, {}),
    "qwen2-moe": ("Qwen2MoeForCausalLM", BASE, {**MOE, "shared_expert_intermediate_size": 80}),
    "qwen3": ("Qwen3ForCausalLM", BASE, {"head_dim": 32, "attention_bias": True, "rope_scaling": YARN}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", BASE, {**MOE, "head_dim": 32, "norm_topk_prob": True}),
    "seed-oss": ("SeedOssForCausalLM", BASE, {"head_dim": 32}),
    "gemma": ("GemmaForCausalLM", BASE, {"head_dim": 32}),
    "gemma-2": ("Gemma2ForCausalLM", BASE, GEMMA),
    "gemma-3": ("Gemma3ForCausalLM", BASE, {**GEMMA, "num_hidden_layers": 7}),
    "gemma-3-linear": (
        "Gemma3ForCausalLM",
        BASE,
        {**GEMMA, "num_hidden_layers": 7, "rope_parameters": LAYERED},
    ),
    "gemma-3n": ("Gemma3nForCausalLM", BASE, GEMMA3N),
    "gemma-4": ("Gemma4ForCausalLM", BASE, GEMMA4),
    "gemma-4-moe": ("Gemma4ForCausalLM", BASE, GEMMA4_MOE),
    "gemma-4-unified": (
        "Gemma4UnifiedForCausalLM",
        BASE,
        {"sliding_window": 16, "head_dim": 32, "global_head_dim": 64, "attention_k_eq_v": True},
    ),
    "phi-2": ("PhiForCausalLM", BASE, {}),
    "phi-3": ("Phi3ForCausalLM", BASE, {"pad_token_id": 0}),
    "phi-3-long": (
        "Phi3ForCausalLM",
        BASE,
        {
            "pad_token_id": 0,
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 32,
            "rope_scaling": LONG,
        },
    ),
    "olmo": ("OlmoForCausalLM", BASE, {"clip_qkv": 1.0}),
    "olmo-2": ("Olmo2ForCausalLM", BASE, {}),
    "olmo-3": (
        "Olmo3ForCausalLM",
        BASE,
        {"sliding_window": 16, "rope_scaling": {**YARN, "attention_factor": 1.2}},
    ),
    "olmoe": ("OlmoeForCausalLM", BASE, {"num_experts": 6, "num_experts_per_tok": 2}),
    "granite": ("GraniteForCausalLM", BASE, {**GRANITE, "attention_bias": True, "mlp_bias": True}),
    "granite-moe": ("GraniteMoeForCausalLM", BASE, {**GRANITE, "num_local_experts": 5}),
    "granite-moe-shared": (
        "GraniteMoeSharedForCausalLM",
        BASE,
        {"num_local_experts": 5, "shared_intermediate_size": 48},
    ),
    "gpt-2": ("GPT2LMHeadModel", OLD, {}),
    "starcoder": ("GPTBigCodeForCausalLM", OLD, {}),
    "starcoder-2": ("Starcoder2ForCausalLM", BASE, {"sliding_window": None}),
    "bloom": ("BloomForCausalLM", {"vocab_size": TOKENS}, {"hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "falcon-7b": ("FalconForCausalLM", FALCON, {}),
    "falcon-40b": ("FalconForCausalLM", NEW_FALCON, {}),
    "falcon-11b": (
        "FalconForCausalLM",
        NEW_FALCON,
        {"num_ln_in_parallel_attn": 1, "tie_word_embeddings": False},
    ),
    "gpt-neox": ("GPTNeoXForCausalLM", SQUARE, {"hidden_act": "gelu_new"}),
    "gpt-neox-serial": (
        "GPTNeoXForCausalLM",
        SQUARE,
        {"hidden_act": "gelu_new", "use_parallel_residual": False, "rotary_pct": 0.5},
    ),
    "glm-4": ("Glm4ForCausalLM", BASE, {"head_dim": 32, "attention_bias": True, "pad_token_id": 0}),
    "command-r": ("CohereForCausalLM", BASE, {"pad_token_id": 0}),
    "command-r-plus": ("CohereForCausalLM", BASE, {"pad_token_id": 0, "use_qk_norm": True}),
    "cohere-2": ("Cohere2ForCausalLM", BASE, {"pad_token_id": 0, "sliding_window": 16}),
    "stablelm": ("StableLmForCausalLM", BASE, {"hidden_size": 128}),
    "stablelm-12b": (
        "StableLmForCausalLM",
        BASE,
        {"hidden_size": 128, "use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True},
    ),
    "nemotron": ("NemotronForCausalLM", BASE, {}),
    "exaone-4": ("Exaone4ForCausalLM", BASE, {"sliding_window": 16, "sliding_window_pattern": 4}),
    "smollm-3": ("SmolLM3ForCausalLM", BASE, {"pad_token_id": 0}),
    "arcee": ("ArceeForCausalLM", BASE, {}),
    "ernie-4.5": ("Ernie4_5ForCausalLM", BASE, {"head_dim": 32}),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """transformers' bars and advice stay out of the output, and nothing is looked up on the hub."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with mock.patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"}):
        yield


def random_model(name: str, base: Mapping[str, Any], more: Mapping[str, Any]) -> Any:
    """A model whose every weight is random, norms and biases too."""
    cls = getattr(transformers, name, None)
    if cls is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    config = transformers.Gemma3TextConfig if name == "Gemma3ForCausalLM" else cls.config_class
    torch.manual_seed(1)
    model = cls(config(**{**base, **more})).eval().float()
    with torch.no_grad():
        scales = (values for name, values in model.named_buffers() if name.endswith("layer_scalar"))
        for values in (*model.parameters(), *scales):
            values.copy_(torch.randn_like(values) * 0.1 + float(values.ndim == 1))
    return model


def add_tokenizer(path: Path) -> None:
    """All bytes as tokens, in the order of their characters."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    texts = [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(256 - len(printable))]
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {text: n for n, text in enumerate(texts)}, "merges": []}
    tokenizer = {"added_tokens": [], "pre_tokenizer": step, "decoder": step, "model": model}
    (path / "tokenizer.json").write_text(json.dumps({"version": "1.0", **tokenizer}))
    (path / "tokenizer_config.json").write_text("{}")


@pytest.mark.filterwarnings("ignore")  # of torch and transformers
@pytest.mark.parametrize("name", CASES)
def test_logits_are_transformers(name: str, tmp_path: Path) -> None:
    """The reference backend gives transformers' logits from the converted file, in F32."""
    model = random_model(*CASES[name])
    model.save_pretrained(tmp_path / "x")
    add_tokenizer(tmp_path / "x")
    ids = np.random.default_rng(0).integers(0, TOKENS, 60)
    with torch.no_grad():
        wanted = model(torch.tensor(ids)[None]).logits[0].numpy()
    convert(tmp_path / "x", tmp_path / "x.gguf", outtype="f32")
    got = puna.load(str(tmp_path / "x.gguf"), backend="reference", n_ctx=64).logits(ids)
    error = float(np.mean((got - wanted) ** 2) / np.mean(wanted**2))
    assert error <= LARGEST_ERROR


NEEDED = {
    "d_ff",
    "d_model",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_heads",
    "num_hidden_layers",
    "num_layers",
    "n_embd",
    "n_head",
    "n_layer",
    "rope_parameters",
    "sliding_window",
    "layer_types",
    "shared_intermediate_size",
    "head_dim",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(architectures()))
def test_defaults_are_transformers(name: str) -> None:
    """A config.json that leaves out what it can means what the class of transformers takes it for."""
    cls = getattr(transformers, name, None)
    if cls is None or name == "Mistral3ForConditionalGeneration":  # whose text model has defaults of its own
        pytest.skip(f"transformers {transformers.__version__} has no defaults for {name}")
    whole = cls.config_class().to_dict()
    whole = {**whole.get("text_config", whole), "architectures": [name]}
    short = {key: whole[key] for key in (*NEEDED, "architectures") if key in whole}
    assert meaning(name, whole) == meaning(name, short)


def meaning(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a configuration becomes, or why it cannot become any."""
    try:
        architecture = architectures()[name](Config(values, "config.json"))
    except ModelError as error:
        return {"error": str(error)}
    found = {key: value.value for key, value in architecture.keys().items() if key != "vocab_size"}
    return {**found, "tied": architecture.tied}


TEXTS = (
    "Hello,  world!\n\n It's 12345.67 in THE morning\t\r\n",
    "I'LL naïve café 我想在apple工作 ½ x² 🚀🚀 e\u0301 \u3000x",
    "def f(x):\n    return x ** 2  # a comment\n\n\nif __name__ == '__main__':\n\tf(3)",
    "a<tool>b <|end|> c",
    " a",
    "",
)
LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"llama-bpe": LLAMA_WORDS, "qwen2": LLAMA_WORDS.replace("{1,3}", "")}


def corpus() -> list[str]:
    """The documentation, to train on."""
    return [
        page.read_text(encoding="utf-8") for page in sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PATTERNS)
def test_ids_are_transformers(name: str, tmp_path: Path) -> None:
    """A byte-level BPE trained here, with special tokens around a text, gives the ids that transformers gives."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    words = pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    options = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    special = ["<|begin|>", "<|end|>"]
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=special, **options)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|end|>"
    )
    fast.save_pretrained(tmp_path)
    config = {**BASE, "architectures": ["LlamaForCausalLM"], "vocab_size": tokenizer.get_vocab_size()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = convert(tmp_path, tmp_path / "x.gguf", vocab_only=True)
    assert found.metadata["tokenizer.ggml.pre"] == name
    ours = puna.load_tokenizer(tmp_path / "x.gguf").tokenizer
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text).input_ids, repr(text)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", ["LlamaTokenizer", "GemmaTokenizer"])
def test_ids_of_sentencepiece_are_transformers(cls: str, tmp_path: Path) -> None:
    """A SentencePiece model that transformers has made a tokenizer.json of gives its ids, without the model file."""
    from sentencepiece import SentencePieceTrainer

    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    with (old / "tokenizer.model").open("wb") as file:
        SentencePieceTrainer.Train(
            sentence_iterator=iter("\n".join(corpus()).splitlines()),
            model_writer=file,
            model_type="bpe",
            vocab_size=800,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            minloglevel=2,
        )
    try:
        getattr(transformers, cls).from_pretrained(old).save_pretrained(new)
    except (ImportError, ValueError) as error:
        pytest.skip(f"transformers cannot read the model: {error}")
    config = {**BASE, "architectures": ["LlamaForCausalLM"], "vocab_size": 1000}
    (new / "config.json").write_text(json.dumps(config))
    convert(new, tmp_path / "x.gguf", vocab_only=True)
    ours = puna.load_tokenizer(tmp_path / "x.gguf").tokenizer
    theirs = transformers.AutoTokenizer.from_pretrained(new)
    for text in (text for text in TEXTS if not text.startswith(" ")):
        assert ours.encode(text) == theirs(text).input_ids, repr(text)


def test_every_architecture_has_a_case() -> None:
    """No class that can be converted goes without a comparison, but for older and wider names of the same."""
    known = {"LLaMAForCausalLM", "RWForCausalLM", "Ernie4_5_ForCausalLM"}
    known |= {
        f"{name}ForConditionalGeneration"
        for name in ("Gemma3", "Gemma3n", "Gemma4", "Gemma4Unified", "Mistral3")
    }
    known |= {name for name, cls in architectures().items() if issubclass(cls, T5Encoder)}  # in its own file
    assert {case[0] for case in CASES.values()} | known == set(architectures())
