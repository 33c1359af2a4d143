"""Shapes of models without weights: what the choice of types looks at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from puna.gguf import Metadata, TensorInfo, Value, ValueType
from puna.gguf.tensors import tensor_bytes
from puna.quants import by_name

__all__ = ["MODELS", "Shape"]


@dataclass(frozen=True)
class Shape:
    """A model of this architecture. keys: heads of keys.  tied: no output matrix."""

    architecture: str = "llama"
    layers: int = 16
    width: int = 512
    ff: int = 1024
    heads: int = 8
    keys: int = 4
    experts: int = 0
    tied: bool = False
    vocab: int = 300

    @property
    def metadata(self) -> Metadata:
        """What llama.cpp needs to see of such a model."""
        counts = {
            "vocab_size": self.vocab,
            "context_length": 256,
            "embedding_length": self.width,
            "block_count": self.layers,
            "feed_forward_length": self.ff,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.keys,
            "attention.sliding_window": 32,
            "rope.dimension_count": self.width // self.heads,
            "expert_count": self.experts,
            "expert_used_count": min(2, self.experts),
            "expert_feed_forward_length": self.ff,
        }
        epsilons = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
        keys: dict[str, Any] = {
            **{key: Value(ValueType.UINT32, count) for key, count in counts.items()},
            **dict.fromkeys(epsilons, Value(ValueType.FLOAT32, 1e-5)),
        }
        named = {f"{self.architecture}.{key}": value for key, value in keys.items()}
        return Metadata.of({"general.architecture": self.architecture, **named})

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """In F16, the vectors in F32."""
        return {name: info(name, shape) for name, shape in self.shapes()}

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "token_embd.weight", (self.vocab, self.width)
        yield "output_norm.weight", (self.width,)
        if not self.tied:
            yield "output.weight", (self.vocab, self.width)
        for layer in range(self.layers):
            for name, shape in self.layer_shapes():
                yield f"blk.{layer}.{name}", shape

    def layer_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        width, ff, of_keys = self.width, self.ff, self.width // self.heads * self.keys
        yield from ((f"{name}_norm.weight", (width,)) for name in ("attn", "ffn"))
        if self.architecture == "falcon":
            yield "attn_qkv.weight", (width + 2 * of_keys, width)
        else:
            yield "attn_q.weight", (width, width)
            yield "attn_k.weight", (of_keys, width)
            yield "attn_v.weight", (of_keys, width)
            yield "attn_q.bias", (width,)
        yield "attn_output.weight", (width, width)
        several = (self.experts,) if self.experts else ()
        suffix = "_exps" if self.experts else ""
        if self.experts:
            yield "ffn_gate_inp.weight", (self.experts, width)
            yield "ffn_down_shexp.weight", (width, ff)
        if self.architecture != "falcon":
            yield f"ffn_gate{suffix}.weight", (*several, ff, width)
        yield f"ffn_up{suffix}.weight", (*several, ff, width)
        yield f"ffn_down{suffix}.weight", (*several, width, ff)


def info(name: str, shape: tuple[int, ...]) -> TensorInfo:
    quant = by_name("F16" if len(shape) > 1 else "F32")
    return TensorInfo(name, quant, shape, 0, tensor_bytes(quant, shape))


MODELS: Mapping[str, Shape] = {
    "llama": Shape(),
    "qwen2, tied, heads in fours": Shape("qwen2", layers=12, keys=2, tied=True),
    "gemma3, rows of 640": Shape("gemma3", layers=18, width=640, ff=2048, heads=4, keys=1, tied=True),
    "rows of 48": Shape(layers=2, width=48, ff=96, heads=4, keys=2),
    "llama, 8 experts": Shape(layers=9, experts=8),
    "qwen3moe, 4 experts": Shape("qwen3moe", layers=17, experts=4, keys=1),
    "falcon": Shape("falcon", layers=32, keys=1),
    "70B": Shape(layers=80, width=256, ff=256, keys=1),
    "65B": Shape(layers=80, width=256, ff=256, heads=8, keys=8),
}
