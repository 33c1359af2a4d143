"""Files of small models of any dense architecture, for looking at their graphs; the weights are zeros."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from puna.gguf import Value, ValueType, write
from puna.models.registry import find
from puna.quants import by_name

__all__ = ["WIDTH", "f32", "u32", "write_arch"]

WIDTH, VOCABULARY, HEADS, HEADS_KV, SIZE, FF, TRAINED = 64, 20, 4, 2, 16, 96, 256
LAYER: Mapping[str, tuple[int, ...]] = {
    "attn_norm": (WIDTH,),
    "attn_q": (HEADS * SIZE, WIDTH),
    "attn_k": (HEADS_KV * SIZE, WIDTH),
    "attn_v": (HEADS_KV * SIZE, WIDTH),
    "attn_output": (WIDTH, HEADS * SIZE),
    "ffn_norm": (WIDTH,),
    "ffn_gate": (FF, WIDTH),
    "ffn_up": (FF, WIDTH),
    "ffn_down": (WIDTH, FF),
}


def u32(value: Any) -> Value:
    return Value(ValueType.UINT32, value)


def f32(value: Any) -> Value:
    return Value(ValueType.FLOAT32, value)


def biases(shapes: Mapping[str, tuple[int, ...]], required: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The biases that an architecture requires beside these weights."""
    found = {name.replace(".weight", ".bias"): shape[:1] for name, shape in shapes.items()}
    return {
        name: shape
        for name, shape in found.items()
        if any(fnmatchcase(re.sub(r"^blk\.\d+\.", "", name), pattern) for pattern in required)
    }


def write_arch(
    path: Path,
    architecture: str,
    *,
    layers: int = 2,
    tensors: int | None = None,
    keys: Mapping[str, Any] | None = None,
    drop: Sequence[str] = (),
    each: Mapping[str, tuple[int, ...]] | None = None,
    extra: Mapping[str, tuple[int, ...]] | None = None,
) -> Path:
    """Write a model of Llama's tensors and return its path.

    layers: what the file says.  tensors: layers that it has tensors for, where that is another number.
    keys: metadata under the architecture's name; None takes a key away.
    drop: tensors that layers, or the model, do not have.  each: more that all layers have.  extra: more of the model.
    """
    metadata = {
        "block_count": u32(layers),
        "context_length": u32(TRAINED),
        "embedding_length": u32(WIDTH),
        "feed_forward_length": u32(FF),
        "attention.head_count": u32(HEADS),
        "attention.head_count_kv": u32(HEADS_KV),
        "attention.layer_norm_rms_epsilon": f32(1e-5),
        "attention.layer_norm_epsilon": f32(1e-5),
        **(keys or {}),
    }
    embedding = {
        f"{name}.weight": (VOCABULARY, WIDTH) for name in ("token_embd", "output") if name not in drop
    }
    shapes: dict[str, tuple[int, ...]] = {**embedding, "output_norm.weight": (WIDTH,), **(extra or {})}
    for i in range(layers if tensors is None else tensors):
        found = {name: shape for name, shape in LAYER.items() if name not in drop} | dict(each or {})
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in found.items()}
    shapes |= biases(shapes, find(architecture, "").requires)
    quant = by_name("F32")
    write(
        path,
        {
            "general.architecture": architecture,
            **{f"{architecture}.{key}": value for key, value in metadata.items() if value is not None},
        },
        [
            (name, quant, shape, np.zeros((*shape[:-1], 4 * shape[-1]), np.uint8))
            for name, shape in shapes.items()
        ],
    )
    return path
