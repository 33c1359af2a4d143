"""Encoders with random weights and a small vocabulary, as GGUF files written in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puna.gguf import Value, ValueType, write
from puna.quants import by_name, quantize

__all__ = ["ENCODERS", "WIDTH", "write_encoder"]

WIDTH, FF, HEADS, LAYERS, TRAINED, EXPERTS = 64, 96, 4, 2, 128, 4
SPECIAL = {"[PAD]": 3, "[UNK]": 2, "[CLS]": 3, "[SEP]": 3, "[MASK]": 3}
STARTS = "a", "b", "c", "the", "cat", "sat", "on", "mat", "query", "document", ",", "."
WORDS = [*(f"\u2581{word}" for word in STARTS), "s", "ed"]
VOCABULARY = [*SPECIAL, *WORDS]
Shapes = Mapping[str, tuple[int, ...]]


def with_bias(**shapes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    weights = {f"{name}.weight": shape for name, shape in shapes.items()}
    return weights | {f"{name}.bias": shape[:1] for name, shape in shapes.items()}


def plain(**shapes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape for name, shape in shapes.items()}


SQUARE, UP, DOWN, TWICE = (WIDTH, WIDTH), (FF, WIDTH), (WIDTH, FF), (2 * FF, WIDTH)
INPUT = plain(token_types=(2, WIDTH)) | with_bias(token_embd_norm=(WIDTH,))
POST = with_bias(attn_output=SQUARE, attn_output_norm=(WIDTH,), layer_output_norm=(WIDTH,))
THREE = with_bias(attn_q=SQUARE, attn_k=SQUARE, attn_v=SQUARE)
ONE = plain(attn_qkv=(3 * WIDTH, WIDTH), attn_output=SQUARE, ffn_norm=(WIDTH,), ffn_down=DOWN)
MLP = with_bias(ffn_up=UP, ffn_down=DOWN)
EXPERT = plain(ffn_gate_inp=(EXPERTS, WIDTH), ffn_up_exps=(EXPERTS, *UP), ffn_down_exps=(EXPERTS, *DOWN))
# Name -> architecture, keys beyond those of all, tensors of the model, of each layer, and of each second layer.
ENCODERS: Mapping[str, tuple[str, Mapping[str, Any], Shapes, Shapes, Shapes]] = {
    "bert": ("bert", {}, INPUT | plain(position_embd=(TRAINED, WIDTH)), POST | THREE | MLP, {}),
    "nomic-bert": (
        "nomic-bert",
        {"rope.freq_base": 1000.0},
        INPUT,
        POST | plain(attn_qkv=(3 * WIDTH, WIDTH), ffn_up=UP, ffn_gate=UP, ffn_down=DOWN),
        {},
    ),
    "nomic-bert-moe": (
        "nomic-bert-moe",
        {"moe_every_n_layers": 2, "expert_count": EXPERTS, "expert_used_count": 2},
        INPUT,
        POST | THREE,
        EXPERT,
    ),
    "jina-bert-v2": (
        "jina-bert-v2",
        {},
        INPUT,
        POST
        | THREE
        | plain(ffn_up=TWICE)
        | with_bias(attn_q_norm=(WIDTH,), attn_k_norm=(WIDTH,), attn_norm_2=(WIDTH,), ffn_down=DOWN),
        {},
    ),
    "jina-bert-v2 of three": (
        "jina-bert-v2",
        {},
        INPUT,
        POST | THREE | plain(ffn_up=UP, ffn_gate=UP) | with_bias(ffn_down=DOWN),
        {},
    ),
    "jina-bert-v3": ("jina-bert-v3", {"rope.freq_base": 20000.0}, INPUT, POST | THREE | MLP, {}),
    "modern-bert": (
        "modern-bert",
        {"attention.sliding_window": 6, "rope.freq_base": 16e4, "rope.freq_base_swa": 1e4},
        plain(token_embd_norm=(WIDTH,), output_norm=(WIDTH,)),
        ONE | plain(ffn_up=TWICE),
        plain(attn_norm=(WIDTH,)),
    ),
    "neo-bert": (
        "neo-bert",
        {},
        {"enc.output_norm.weight": (WIDTH,)},
        ONE | plain(attn_norm=(WIDTH,), ffn_up=TWICE),
        {},
    ),
}


def write_encoder(
    path: Path,
    name: str = "bert",
    *,
    pooling: int | None = None,
    quant: str = "F32",
    extra: Shapes | None = None,
    keys: Mapping[str, Any] | None = None,
) -> Path:
    """Write one of ENCODERS and return its path.

    pooling: by number.  quant: type of the matrices.  extra: more tensors.  keys: more metadata.
    """
    architecture, own, whole, each, second = ENCODERS[name]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(VOCABULARY), WIDTH),
        **whole,
    }
    for i in range(LAYERS):
        more = second if i % 2 else MLP if name == "nomic-bert-moe" else {}
        shapes |= {f"blk.{i}.{tensor}": shape for tensor, shape in {**each, **more}.items()}
    shapes |= extra or {}  # last, so that the others are the same without them
    epsilon = "layer_norm_rms_epsilon" if name == "neo-bert" else "layer_norm_epsilon"
    values = {
        "context_length": TRAINED,
        "embedding_length": WIDTH,
        "feed_forward_length": FF,
        "block_count": LAYERS,
        "attention.head_count": HEADS,
        f"attention.{epsilon}": 1e-5,
        "attention.causal": False,
        **({} if pooling is None else {"pooling_type": pooling}),
        **own,
    }
    metadata = {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": typed(value) for key, value in values.items()},
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": typed(2),
        "tokenizer.ggml.tokens": VOCABULARY,
        "tokenizer.ggml.token_type": np.array([*SPECIAL.values(), *[1] * len(WORDS)], np.int32),
        **{
            f"tokenizer.ggml.{mark}_token_id": typed(i)
            for i, mark in enumerate(("padding", "unknown", "bos", "seperator", "mask"))
        },
        **(keys or {}),
    }
    rng = np.random.default_rng(len(name))
    write(path, metadata, [tensor(rng, name, shape, quant) for name, shape in shapes.items()])
    return path


def typed(value: Any) -> Value:
    kinds = {bool: ValueType.BOOL, int: ValueType.UINT32, float: ValueType.FLOAT32}
    return Value(kinds[type(value)], value)


def tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...], quant: str) -> Any:
    values = rng.standard_normal(shape, np.float32) * np.float32(0.2) + np.float32("norm.w" in name)
    is_matrix = len(shape) > 1 and "gate_inp" not in name and "token" not in name and "position" not in name
    kind = by_name(quant if is_matrix else "F32")
    return name, kind, shape, quantize(kind, values)
