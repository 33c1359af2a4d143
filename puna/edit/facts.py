"""What the choice of types depends on beside the tensors: a model's shape, out of its metadata."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from puna.gguf import Metadata, ValueType

__all__ = ["Facts", "facts_of"]

# Layers of the models that llama.cpp calls 70B, by architecture.
LAYERS_OF_70B = {"deci": 80, "jais2": 68, "llama": 80, "olmo": 80, "qwen2": 80}


@dataclass(frozen=True)
class Facts:
    """architecture: general.architecture.  layers, experts: how many.  heads_per_key: in the first layer.

    is_70b: one of the models whose attn_v is an eighth of attn_q.  is_tied: no output matrix of its own.
    has_imatrix: importance is known.
    """

    architecture: str
    layers: int
    experts: int
    heads_per_key: int
    is_70b: bool
    is_tied: bool
    has_imatrix: bool


def facts_of(metadata: Metadata, tensors: Container[str], has_imatrix: bool = False) -> Facts:
    """tensors: their names. Raises ModelError or FormatError where the metadata do not tell."""
    architecture = metadata.string("general.architecture")
    layers = metadata.integer(f"{architecture}.block_count")
    heads = first_of(metadata, f"{architecture}.attention.head_count", 0)
    keys = first_of(metadata, f"{architecture}.attention.head_count_kv", heads)
    return Facts(
        architecture=architecture,
        layers=layers,
        experts=metadata.integer(f"{architecture}.expert_count", default=0),
        heads_per_key=heads // keys if keys > 0 else 0,
        is_70b=layers == LAYERS_OF_70B.get(architecture) and not (architecture == "llama" and heads == keys),
        is_tied="output.weight" not in tensors,
        has_imatrix=has_imatrix,
    )


def first_of(metadata: Metadata, key: str, default: int) -> int:
    """A number that may differ from layer to layer: the first layer's."""
    if key in metadata and metadata.type_of(key) is ValueType.ARRAY:
        values = metadata.integers(key)
        return int(values[0]) if len(values) else default
    return metadata.integer(key, default=default)
