"""Small whole models for tests: a real GGUF file of two layers with a working vocabulary, written in milliseconds."""

from __future__ import annotations

import functools
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from puna.gguf import Value, ValueType, write
from puna.quants import by_name, quantize

__all__ = ["ALPHABET", "CHAT_TEMPLATE", "write_tiny"]

WIDTH, LAYERS, HEADS, HEADS_KV, FF = 64, 2, 2, 1, 128
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What follows what, for a model that says the alphabet: `a` after a new line, the end after `z`.
ALPHABET: Mapping[str, str] = {
    "\u010a": "a",  # a new line, in GPT-2's byte alphabet
    **dict(zip(string.ascii_lowercase, string.ascii_lowercase[1:], strict=False)),
    "z": "<|im_end|>",
}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = ("\u0120the", "\u0120and", "ing", "\u0120of", "\u0120to", "er", "system", "user", "assistant")
NORMS = {
    "llama": ("attn_norm", "ffn_norm"),
    "qwen2": ("attn_norm", "ffn_norm"),
    "qwen3": ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"),
    "gemma3": (
        "attn_norm",
        "ffn_norm",
        "attn_q_norm",
        "attn_k_norm",
        "post_attention_norm",
        "post_ffw_norm",
    ),
    "lfm2": ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"),
}
TAPS = 3  # of lfm2's convolution


def write_tiny(
    path: Path,
    *,
    architecture: str = "llama",
    vocab: Literal["bpe", "spm", "none"] = "bpe",
    quant: str = "F32",
    chat_template: str | None = CHAT_TEMPLATE,
    seed: int = 0,
    n_ctx: int = 256,
    follow: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model and return its path.

    architecture: llama, qwen2, qwen3, gemma3 (with a window) or lfm2 (whose first layer has a state).
    vocab: about 300 tokens; "none" leaves the tokenizer out.
    quant: of the matrices; the width is 64, or one block of the type where that is more.
    n_ctx: context length that it says it was trained on.
    follow: token text -> text of the token that it makes certain to come next, whatever came before.
    metadata: more keys, or others in place of those here; None takes a key away.
    """
    tokens = VOCABULARIES[vocab]()
    width = max(WIDTH, by_name(quant).block)
    keys = {**model_keys(architecture, width, n_ctx), **tokens, **(metadata or {})}
    if chat_template is not None and vocab != "none":
        keys["tokenizer.chat_template"] = chat_template
    texts = list(tokens["tokenizer.ggml.tokens"]) if vocab != "none" else [f"{i}" for i in range(300)]
    tensors = make_tensors(architecture, width, texts, np.random.default_rng(seed), follow)
    write(
        path,
        {key: value for key, value in keys.items() if value is not None},
        [encoded(name, values, quant) for name, values in tensors],
    )
    return path


def encoded(name: str, values: NDArray[np.float32], quant: str) -> tuple[str, Any, Any, Any]:
    kind = by_name(quant if values.ndim == 2 else "F32")
    return name, kind, values.shape, quantize(kind, values)


def model_keys(architecture: str, width: int, n_ctx: int) -> dict[str, Any]:
    u32 = functools.partial(Value, ValueType.UINT32)
    f32 = functools.partial(Value, ValueType.FLOAT32)
    keys = {
        "block_count": u32(LAYERS),
        "context_length": u32(n_ctx),
        "embedding_length": u32(width),
        "feed_forward_length": u32(FF * width // WIDTH),
        "attention.head_count": u32(HEADS),
        "attention.head_count_kv": u32(HEADS_KV),
        "attention.layer_norm_rms_epsilon": f32(1e-5),
        "rope.freq_base": f32(10000.0),
    }
    if architecture == "gemma3":
        keys["attention.sliding_window"] = u32(32)
    if architecture == "lfm2":
        keys["shortconv.l_cache"] = u32(TAPS)
    return {
        "general.architecture": architecture,
        "general.name": f"tiny {architecture}",
        **{f"{architecture}.{key}": value for key, value in keys.items()},
    }


def bpe_keys() -> dict[str, Any]:
    """All bytes, a few words with the merges that make them, and the special tokens."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    tokens = [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(256 - len(printable))]
    merges = []
    for word in WORDS:
        for end in range(1, len(word)):
            merges.append(f"{word[:end]} {word[end]}")
            tokens.append(word[: end + 1])
    tokens = [*dict.fromkeys(tokens), *SPECIAL]
    kinds = [1] * (len(tokens) - len(SPECIAL)) + [3] * len(SPECIAL)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Value(ValueType.INT32, kinds),
        "tokenizer.ggml.merges": list(dict.fromkeys(merges)),
        "tokenizer.ggml.bos_token_id": Value(ValueType.UINT32, tokens.index("<|endoftext|>")),
        "tokenizer.ggml.eos_token_id": Value(ValueType.UINT32, tokens.index("<|im_end|>")),
        "tokenizer.ggml.add_bos_token": False,
    }


def spm_keys() -> dict[str, Any]:
    """Unknown, begin, end, all bytes, letters and a few words; BOS goes before every text."""
    pieces = [*string.ascii_letters, "\u2581", *string.punctuation]
    words = [word.replace("\u0120", "\u2581") for word in WORDS]
    steps = [word[:end] for word in words for end in range(2, len(word) + 1)]
    normal = list(dict.fromkeys([*steps, *pieces]))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *normal, *SPECIAL]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(normal), *[3] * len(SPECIAL)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(normal))] + [0.0] * len(SPECIAL)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Value(ValueType.INT32, kinds),
        "tokenizer.ggml.scores": Value(ValueType.FLOAT32, scores),
        "tokenizer.ggml.bos_token_id": Value(ValueType.UINT32, 1),
        "tokenizer.ggml.eos_token_id": Value(ValueType.UINT32, 2),
        "tokenizer.ggml.unknown_token_id": Value(ValueType.UINT32, 0),
    }


VOCABULARIES = {"bpe": bpe_keys, "spm": spm_keys, "none": dict[str, Any]}


def make_tensors(
    architecture: str,
    width: int,
    texts: list[str],
    random: np.random.Generator,
    follow: Mapping[str, str] | None,
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Name and values of each tensor. With `follow`, what a layer adds is nothing."""

    def matrix(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
        values = random.standard_normal((rows, columns)) * scale / np.sqrt(columns)
        return values.astype(np.float32)  # [rows, columns]

    size = width // HEADS
    n_ff, added = FF * width // WIDTH, 0.0 if follow else 1.0
    embedding = matrix(len(texts), width, 8.0)
    yield "token_embd.weight", embedding
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        is_conv = architecture == "lfm2" and layer == 0
        for norm in NORMS[architecture][: 2 if is_conv else None]:
            count = size if norm in {"attn_q_norm", "attn_k_norm"} else width
            yield f"{prefix}{norm}.weight", (1 + 0.1 * random.standard_normal(count)).astype(np.float32)
        if is_conv:
            yield f"{prefix}shortconv.in_proj.weight", matrix(3 * width, width)
            yield f"{prefix}shortconv.conv.weight", matrix(width, TAPS)
            yield f"{prefix}shortconv.out_proj.weight", matrix(width, width, added)
        else:
            yield f"{prefix}attn_q.weight", matrix(HEADS * size, width)
            for name in ("attn_k", "attn_v"):
                yield f"{prefix}{name}.weight", matrix(HEADS_KV * size, width)
        if architecture == "qwen2":
            for name, heads in (("attn_q", HEADS), ("attn_k", HEADS_KV), ("attn_v", HEADS_KV)):
                yield f"{prefix}{name}.bias", (0.1 * random.standard_normal(heads * size)).astype(np.float32)
        if not is_conv:
            yield f"{prefix}attn_output.weight", matrix(width, HEADS * size, added)
        yield f"{prefix}ffn_gate.weight", matrix(n_ff, width)
        yield f"{prefix}ffn_up.weight", matrix(n_ff, width)
        yield f"{prefix}ffn_down.weight", matrix(width, n_ff, added)
    yield "output_norm.weight", np.ones(width, np.float32)
    yield "output.weight", successor(embedding, texts, follow) if follow else matrix(len(texts), width, 4.0)


def successor(
    embedding: NDArray[np.float32], texts: list[str], follow: Mapping[str, str]
) -> NDArray[np.float32]:
    """Rows that score highest after the token that they follow: [tokens, width]."""
    output = np.zeros_like(embedding)
    for text, after in follow.items():
        row = embedding[texts.index(text)]
        output[texts.index(after)] += 8 * row / np.linalg.norm(row)
    return output
