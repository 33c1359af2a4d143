"""T5s with random weights and a small vocabulary, as GGUF files written in milliseconds."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puna.gguf import Value, ValueType, write
from puna.quants import by_name, quantize

__all__ = ["TOKENS", "WIDTH", "write_t5"]

WIDTH, FF, HEADS, HEAD, LAYERS, DECODER_LAYERS, BUCKETS, TRAINED = 64, 96, 4, 16, 3, 2, 32, 512
SPECIAL = {"<pad>": 3, "</s>": 3, "<unk>": 2}
LETTERS = [mark + letter for mark in ("\u2581", "") for letter in string.ascii_lowercase]
VOCABULARY = [*SPECIAL, "\u2581", *LETTERS]
TOKENS = len(VOCABULARY)
Shapes = dict[str, tuple[int, ...]]


def write_t5(
    path: Path,
    architecture: str = "t5",
    *,
    gated: bool = False,
    tied: bool = True,
    quant: str = "F32",
    keys: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model and return its path.

    architecture: t5 or t5encoder.  gated: as T5 1.1 and Flan-T5.  tied: without a head of its own.
    quant: type of the matrices.  keys: metadata under the architecture's name; None takes a key away.
    """
    values = {
        "context_length": TRAINED,
        "embedding_length": WIDTH,
        "feed_forward_length": FF,
        "block_count": LAYERS,
        "attention.head_count": HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_epsilon": 1e-6,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.relative_buckets_count": BUCKETS,
        **(answers() if architecture == "t5" else {}),
        **(keys or {}),
    }
    metadata = {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": typed(value) for key, value in values.items() if value is not None},
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": VOCABULARY,
        "tokenizer.ggml.token_type": Value(ValueType.INT32, [*SPECIAL.values(), *[1] * (TOKENS - 3)]),
        "tokenizer.ggml.scores": Value(ValueType.FLOAT32, [-n / 64 for n in range(TOKENS)]),
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
    }
    rng = np.random.default_rng(gated + 2 * tied)
    named = shapes(architecture, gated, tied).items()
    write(path, metadata, [tensor(rng, name, shape, quant) for name, shape in named])
    return path


def answers() -> dict[str, int]:
    return {"decoder_block_count": DECODER_LAYERS, "decoder_start_token_id": 0}


def shapes(architecture: str, gated: bool, tied: bool) -> Shapes:
    found: Shapes = {"token_embd.weight": (TOKENS, WIDTH), **stack("enc", LAYERS, ("attn",), gated)}
    if architecture == "t5":
        found |= stack("dec", DECODER_LAYERS, ("attn", "cross_attn"), gated)
        found |= {} if tied else {"output.weight": (TOKENS, WIDTH)}
    return found


def stack(name: str, layers: int, attentions: tuple[str, ...], gated: bool) -> Shapes:
    """The tensors of an encoder or a decoder."""
    found: Shapes = {
        f"{name}.output_norm.weight": (WIDTH,),
        f"{name}.blk.0.attn_rel_b.weight": (BUCKETS, HEADS),
    }
    each: Shapes = {"ffn_norm": (WIDTH,), "ffn_up": (FF, WIDTH), "ffn_down": (WIDTH, FF)}
    each |= {"ffn_gate": (FF, WIDTH)} if gated else {}
    for attention in attentions:
        each |= {f"{attention}_{part}": (HEADS * HEAD, WIDTH) for part in "qkv"}
        each |= {f"{attention}_o": (WIDTH, HEADS * HEAD), f"{attention}_norm": (WIDTH,)}
    return found | {
        f"{name}.blk.{i}.{part}.weight": shape for i in range(layers) for part, shape in each.items()
    }


def typed(value: Any) -> Value:
    kinds = {bool: ValueType.BOOL, int: ValueType.UINT32, float: ValueType.FLOAT32}
    return Value(kinds[type(value)], value)


def tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...], quant: str) -> Any:
    is_norm, is_bias = name.endswith("norm.weight"), "rel_b" in name
    values = rng.standard_normal(shape, np.float32) * np.float32(1.0 if is_bias else 0.15) + np.float32(
        is_norm
    )
    kind = by_name(quant if len(shape) > 1 and not is_bias and "token" not in name else "F32")
    return name, kind, shape, quantize(kind, values)
