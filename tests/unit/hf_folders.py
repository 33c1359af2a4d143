"""Small Hugging Face folders for tests, written by hand: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, FF, LAYERS, HEADS, HEADS_KV, HEAD = 32, 64, 2, 4, 2, 8
CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": FF,
    "max_position_embeddings": 64,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": HEADS_KV,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I64": "<i8"}
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ("<|begin|>", "<|end|>", "<tool>")
WORDS = ("\u0120the", "in", "ing", "\u0120a")
Tensors = dict[str, "np.ndarray[Any, Any]"]


def bf16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The upper halves of float32 numbers."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def safetensors(path: Path, tensors: Tensors, dtype: str = "F32") -> Path:
    """A file that holds the tensors one behind the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        raw = (bf16(values) if dtype == "BF16" else values).astype(STORED[dtype]).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    return with_header(path, json.dumps(header).encode(), data)


def with_header(path: Path, header: bytes, data: bytes, length: int | None = None) -> Path:
    """A file with any header; `length` is what it says of the header's."""
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)
    return path


def matrix(name: str, *shape: int) -> np.ndarray[Any, Any]:
    """Values that follow from the name."""
    seed = [ord(letter) for letter in name]
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / math.sqrt(shape[-1])


def llama_tensors(tokens: int, layers: int = LAYERS) -> Tensors:
    """All that a Llama of CONFIG's shape has."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (tokens, WIDTH),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (tokens, WIDTH),
    }
    for layer in range(layers):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (WIDTH,),
                "self_attn.q_proj": (HEADS * HEAD, WIDTH),
                "self_attn.k_proj": (HEADS_KV * HEAD, WIDTH),
                "self_attn.v_proj": (HEADS_KV * HEAD, WIDTH),
                "self_attn.o_proj": (WIDTH, HEADS * HEAD),
                "post_attention_layernorm": (WIDTH,),
                "mlp.gate_proj": (FF, WIDTH),
                "mlp.up_proj": (FF, WIDTH),
                "mlp.down_proj": (WIDTH, FF),
            }.items()
        }
    return {name: matrix(name, *shape) for name, shape in shapes.items()}


def byte_level(pattern: str = QWEN2, **model: Any) -> dict[str, Any]:
    """A tokenizer.json: all bytes, a few merges, and added tokens, of which the last is not special."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    texts = [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(256 - len(printable))]
    merges = []
    for word in WORDS:
        for end in range(1, len(word)):
            merges.append([word[:end], word[end]])
            texts.append(word[: end + 1])
    texts = list(dict.fromkeys(texts))
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": len(texts) + n,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": text.startswith("<|"),
            }
            for n, text in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {text: n for n, text in enumerate(texts)},
            "merges": merges,
            **model,
        },
    }


def count(tokenizer: Mapping[str, Any]) -> int:
    return len(tokenizer["model"].get("vocab", ())) + len(tokenizer["added_tokens"])


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def folder(
    path: Path,
    tensors: Tensors | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    dtype: str = "F32",
) -> Path:
    """A whole folder, by default of a Llama. config: further keys; settings: of tokenizer_config.json."""
    tokenizer = byte_level() if tokenizer is None else tokenizer
    path.mkdir(exist_ok=True)
    size = count(tokenizer) if tensors is None else tensors["model.embed_tokens.weight"].shape[0]
    write_json(path / "config.json", {**CONFIG, "vocab_size": size, **(config or {})})
    write_json(path / "tokenizer.json", tokenizer)
    default = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}}
    write_json(path / "tokenizer_config.json", default if settings is None else settings)
    safetensors(path / "model.safetensors", llama_tensors(size) if tensors is None else tensors, dtype)
    return path
