"""Encoders of transformers with random weights, and the GGUF files that hold the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from puna.gguf import Value, ValueType, write
from puna.quants import by_name

__all__ = ["CASES", "TOKENS", "Case", "random_model", "write_encoder"]

TOKENS, LENGTH = 96, 128
BASE: Mapping[str, Any] = {
    "vocab_size": TOKENS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 1,
}
BERT = {
    r"embeddings\.word_embeddings": "token_embd",
    r"embeddings\.position_embeddings": "position_embd",
    r"embeddings\.token_type_embeddings": "token_types",
    r"embeddings\.LayerNorm": "token_embd_norm",
    r"encoder\.layer\.": "blk.",
    r"attention\.self\.query": "attn_q",
    r"attention\.self\.key": "attn_k",
    r"attention\.self\.value": "attn_v",
    r"attention\.output\.dense": "attn_output",
    r"attention\.output\.LayerNorm": "attn_output_norm",
    r"intermediate\.dense": "ffn_up",
    r"output\.dense": "ffn_down",
    r"output\.LayerNorm": "layer_output_norm",
}
LATER = {
    r"embeddings\.word_embeddings|^embed_tokens|embeddings\.tok_embeddings": "token_embd",
    r"embeddings\.token_type_embeddings": "token_types",
    r"embeddings\.(LayerNorm|norm)": "token_embd_norm",
    r"^layers\.": "blk.",
    r"self_attn\.([qkv])_proj": r"attn_\1",
    r"self_attn\.([qk])_norm": r"attn_\1_norm",
    r"self_attn\.o_proj|attn\.Wo": "attn_output",
    r"attn\.Wqkv": "attn_qkv",
    r"mlp\.(gate|up|down)_proj": r"ffn_\1",
    r"mlp\.(fc1|Wi)": "ffn_up",
    r"mlp\.(fc2|Wo)": "ffn_down",
    r"post_mlp_layernorm": "layer_output_norm",
    r"attn_norm|input_layernorm": "attn_norm",
    r"mlp_norm|pre_feedforward_layernorm": "ffn_norm",
    r"post_feedforward_layernorm": "post_ffw_norm",
    r"^(final_norm|norm)\.": "output_norm.",
}
POST = {**LATER, r"post_attention_layernorm": "attn_output_norm"}
PRE = {**LATER, r"post_attention_layernorm": "ffn_norm"}
GEMMA = {**LATER, r"post_attention_layernorm": "post_attention_norm"}


@dataclass(frozen=True)
class Case:
    """A class of transformers, what its configuration says beyond BASE, and what its file does.

    norm: the epsilon's key and value.  names: its tensors' names as GGUF has them.  past: positions before the first.
    plus: what is added to the weights of norms, where the model adds it itself.
    """

    cls: str
    architecture: str
    names: Mapping[str, str]
    config: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, float] = field(default_factory=dict)
    rms: float = 0.0
    layer: float = 1e-12
    past: int = 0
    plus: float = 0.0


def rope(base: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base}


LAYERS = ["full_attention", "sliding_attention", "sliding_attention"]
ROBERTA = {**BERT, r"classifier\.dense": "cls", r"classifier\.out_proj": "cls.output"}
CASES: Mapping[str, Case] = {
    "bert": Case("BertModel", "bert", BERT),
    "roberta": Case("XLMRobertaModel", "bert", BERT, past=2),
    "classifier": Case("XLMRobertaForSequenceClassification", "bert", ROBERTA, {"num_labels": 3}, past=2),
    "nomic": Case(
        "NomicBertModel", "nomic-bert", POST, {"rope_parameters": rope(1000.0)}, {"rope.freq_base": 1e3}
    ),
    "jina-v3": Case(
        "JinaEmbeddingsV3Model",
        "jina-bert-v3",
        POST,
        {"rope_parameters": rope(20000.0)},
        {"rope.freq_base": 2e4},
        layer=1e-5,
    ),
    "modern": Case(
        "ModernBertModel",
        "modern-bert",
        LATER,
        {
            "local_attention": 12,
            "layer_types": LAYERS,
            "rope_parameters": {"full_attention": rope(160000.0), "sliding_attention": rope(10000.0)},
        },
        {"rope.freq_base": 16e4, "rope.freq_base_swa": 1e4, "attention.sliding_window": 12},
        layer=1e-5,
    ),
    "euro": Case(
        "EuroBertModel",
        "eurobert",
        PRE,
        {"num_key_value_heads": 2, "rope_parameters": rope(250000.0), "rms_norm_eps": 1e-5},
        {"rope.freq_base": 25e4, "attention.head_count_kv": 2},
        rms=1e-5,
    ),
    "gemma": Case(
        "Gemma3TextModel",
        "gemma-embedding",
        GEMMA,
        {
            "use_bidirectional_attention": True,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"full_attention": rope(1e6), "sliding_attention": rope(1e4)},
        },
        {
            "rope.freq_base": 1e6,
            "attention.head_count_kv": 1,
            "attention.sliding_window": 12,
            "attention.sliding_window_pattern": 2,
        },
        rms=1e-6,
        plus=1.0,
    ),
    "qwen3": Case(
        "Qwen3Model",
        "qwen3",
        PRE,
        {"num_key_value_heads": 2, "head_dim": 16, "rope_parameters": rope(1e6)},
        {"rope.freq_base": 1e6, "attention.head_count_kv": 2},
        rms=1e-6,
    ),
}


def random_model(case: Case) -> Any:
    """The model, every weight random, those of norms about 1."""
    import torch
    import transformers

    cls = getattr(transformers, case.cls)
    base = {**BASE, "max_position_embeddings": LENGTH + case.past}
    torch.manual_seed(1)
    model = cls(cls.config_class(**{**base, **case.config})).eval().float()
    with torch.no_grad():
        for values in model.parameters():
            values.copy_(torch.randn_like(values) * 0.2 + float(values.ndim == 1 and not case.plus))
    return model


def write_encoder(case: Case, model: Any, path: Path, pooling: int) -> Path:
    """Its GGUF file, in F32. pooling: by number."""
    tensors: dict[str, np.ndarray] = {}
    for name, values in model.state_dict().items():
        named = name.removeprefix("roberta.")
        for pattern, ours in case.names.items():
            named = re.sub(pattern, ours, named)
        array = values.numpy().astype(np.float32)
        is_norm = named.endswith("norm.weight")
        array = array[case.past :] if named == "position_embd.weight" else array
        if not named.startswith(("pooler", "embeddings.position_ids")):
            tensors[named] = array + np.float32(case.plus) if is_norm else array
    u32, f32 = (lambda value, kind=kind: Value(kind, value) for kind in (ValueType.UINT32, ValueType.FLOAT32))
    metadata = {
        "context_length": u32(LENGTH),
        "embedding_length": u32(BASE["hidden_size"]),
        "feed_forward_length": u32(BASE["intermediate_size"]),
        "block_count": u32(BASE["num_hidden_layers"]),
        "attention.head_count": u32(BASE["num_attention_heads"]),
        f"attention.layer_norm_{'rms_' * bool(case.rms)}epsilon": f32(case.rms or case.layer),
        "pooling_type": u32(pooling),
        **({"attention.causal": Value(ValueType.BOOL, False)} if case.architecture != "qwen3" else {}),
        **{key: f32(value) if isinstance(value, float) else u32(value) for key, value in case.keys.items()},
    }
    full = {f"{case.architecture}.{key}": value for key, value in metadata.items()}
    quant = by_name("F32")
    items = [(name, quant, values.shape, values.view(np.uint8)) for name, values in tensors.items()]
    write(path, {"general.architecture": case.architecture, **full}, items)
    return path
