"""Write a GGUF model with random weights in a given shape and type, to measure speed on without a download.

    python bench/make_model.py qwen2-1.5b q4_k_m [-o FILE]

Values are drawn once, a few MiB of them, and repeated: speed does not depend on them, and writing takes seconds.
Their scale is that of a trained model's, so that logits stay finite.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.errors import PunaError, RequestError
from puna.gguf import GGUFFile, Value, ValueType, write
from puna.quants import QuantType, by_name, dequantize

__all__ = ["MIXES", "SHAPES", "Shape", "main", "make_model", "tensor_type"]

VOCABULARY = Path(__file__).resolve().parents[2] / "shared" / "vocab" / "ggml-vocab-qwen2.gguf"
# How many blocks are drawn, by the values in a block: primes, so that no two rows are alike.
POOL: Mapping[int, int] = {1: 2_097_143, 32: 262_147, 64: 131_101, 128: 65_537, 256: 32_771}


@dataclass(frozen=True)
class Shape:
    """Sizes of a qwen2 model with tied output. Heads have width / heads values."""

    layers: int
    width: int
    heads: int
    heads_kv: int
    n_ff: int
    vocabulary: int


SHAPES: Mapping[str, Shape] = {
    "qwen2-tiny": Shape(2, 256, 4, 2, 512, 512),
    "qwen2-0.5b": Shape(24, 896, 14, 2, 4864, 151_936),
    "qwen2-0.6b": Shape(24, 1024, 16, 4, 4096, 151_936),  # rows that divide into blocks of any type
    "qwen2-1.5b": Shape(28, 1536, 12, 2, 8960, 151_936),
    "qwen2-3b": Shape(36, 2048, 16, 2, 11_008, 151_936),
}


@dataclass(frozen=True)
class Mix:
    """Which types a mix of llama-quantize gives: its number in general.file_type, the type of most matrices,
    of the (tied) output, and of attn_v and ffn_down in the layers that it gives more bits."""

    file_type: int | None
    most: str
    output: str
    more: str


MIXES: Mapping[str, Mix] = {
    "f32": Mix(0, "F32", "F32", "F32"),
    "f16": Mix(1, "F16", "F16", "F16"),
    "bf16": Mix(32, "BF16", "BF16", "BF16"),
    "q4_0": Mix(2, "Q4_0", "Q6_K", "Q4_0"),
    "q4_1": Mix(3, "Q4_1", "Q6_K", "Q4_1"),
    "q5_0": Mix(8, "Q5_0", "Q6_K", "Q5_0"),
    "q5_1": Mix(9, "Q5_1", "Q6_K", "Q5_1"),
    "q8_0": Mix(7, "Q8_0", "Q8_0", "Q8_0"),
    "q4_k_m": Mix(15, "Q4_K", "Q6_K", "Q6_K"),
    "q5_k_m": Mix(17, "Q5_K", "Q6_K", "Q6_K"),
    "q6_k": Mix(18, "Q6_K", "Q6_K", "Q6_K"),
    # One type for all but the output: what is measured is that type.
    **{
        name.lower(): Mix(number, name, "Q6_K", name)
        for name, number in {
            "Q2_K": 21,
            "Q3_K": 11,
            "Q4_K": 14,
            "Q5_K": 16,
            "Q8_K": None,
            "IQ1_S": 24,
            "IQ1_M": 31,
            "IQ2_XXS": 19,
            "IQ2_XS": 20,
            "IQ2_S": 28,
            "IQ3_XXS": 23,
            "IQ3_S": 26,
            "IQ4_NL": 25,
            "IQ4_XS": 30,
            "TQ1_0": 36,
            "TQ2_0": 37,
            "MXFP4": 38,
            "NVFP4": 39,
            "Q1_0": 40,
            "Q2_0": None,
        }.items()
    },
}
# What llama-quantize takes where rows do not divide into the type's blocks.
FALLBACK: Mapping[str, str] = {
    "Q2_K": "IQ4_NL",
    "Q3_K": "IQ4_NL",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    "TQ1_0": "Q4_0",
    "TQ2_0": "Q4_0",
}
# Type -> byte of the half float that scales a block; byte and sign of the one that shifts it. Elsewhere byte 0 alone.
HALVES: Mapping[str, tuple[int, int | None, int]] = {
    "Q4_1": (0, 2, -1),
    "Q5_1": (0, 2, -1),
    "Q2_K": (80, 82, 1),
    "Q3_K": (108, None, 0),
    "Q4_K": (0, 2, 1),
    "Q5_K": (0, 2, 1),
    "Q6_K": (208, None, 0),
    "TQ1_0": (52, None, 0),
    "TQ2_0": (64, None, 0),
}
Bytes = NDArray[np.uint8]


def tensor_type(mix: Mix, name: str, layer: int, layers: int, columns: int) -> QuantType:
    """The type that llama-quantize gives a matrix (llama_tensor_get_type in llama.cpp's llama-quant.cpp)."""
    kind = mix.most
    if name == "token_embd":
        kind = mix.output
    elif name in {"attn_v", "ffn_down"} and has_more_bits(layer, layers):
        kind = mix.more
    return by_name(FALLBACK.get(kind, "IQ4_NL") if columns % by_name(kind).block else kind)


def has_more_bits(layer: int, layers: int) -> bool:
    """Whether a mix spends more bits on a layer: the first and last eighth, and each third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


class Weights:
    """Random blocks of every type, drawn once a type."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.pools: dict[tuple[str, float], Bytes] = {}

    def data(self, quant: QuantType, shape: tuple[int, ...], deviation: float) -> Bytes:
        """Bytes of a tensor whose values have this standard deviation, and a mean of about 0."""
        key = quant.name, deviation
        if key not in self.pools:
            self.pools[key] = self.pool(quant, deviation)
        pool = self.pools[key]
        start = int(self.random.integers(len(pool))) * quant.bytes
        size = shape[0] * quant.row_bytes(shape[-1])
        return np.resize(np.roll(pool.reshape(-1), -start), size)

    def pool(self, quant: QuantType, deviation: float) -> Bytes:
        """Blocks of a type, uint8 [blocks, bytes]."""
        count = POOL[quant.block]
        if quant.is_float:
            values = self.random.standard_normal(count, np.float32) * np.float32(deviation)
            return floats(quant, values)
        blocks = self.random.integers(0, 256, (count, quant.bytes), np.uint8)
        if quant.name in {"TQ2_0", "Q2_0"}:  # codes 0, 1, 2, 1: those in use, around 1
            blocks &= ~((blocks & blocks >> 1 & 0x55) << 1)
        scaled = SCALED.get(quant.name, by_halves)
        sample = scaled(quant, blocks[:256].copy(), 1.0)
        found = float(dequantize(quant, sample.reshape(1, -1)).std())
        return scaled(quant, blocks, deviation / found)


def by_halves(quant: QuantType, blocks: Bytes, scale: float) -> Bytes:
    """Blocks with this scale, and the shift that takes the codes' mean to 0."""
    scale_at, shift_at, sign = HALVES.get(quant.name, (0, None, 0))
    blocks[:, scale_at : scale_at + 2] = np.array([scale], "<f2").view(np.uint8)
    if shift_at is not None:
        middle = sign * ((1 << quant.bits) - 1) / 2
        blocks[:, shift_at : shift_at + 2] = np.array([scale * middle], "<f2").view(np.uint8)
    return blocks


def by_single(quant: QuantType, blocks: Bytes, scale: float) -> Bytes:
    blocks[:, :4] = np.array([scale], "<f4").view(np.uint8)
    return blocks


def by_nibbles(quant: QuantType, blocks: Bytes, scale: float) -> Bytes:
    """IQ1_M: the half float lies atop the last four words."""
    half = int(np.array([scale], "<f2").view("<u2")[0])
    for i in range(4):
        blocks[:, 49 + 2 * i] = (blocks[:, 49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4
    return blocks


def by_exponent(quant: QuantType, blocks: Bytes, scale: float) -> Bytes:
    """MXFP4 has powers of two alone: of two neighbours, as many blocks each as give the deviation of the scale."""
    power = np.floor(np.log2(scale))
    share = ((scale / 2.0**power) ** 2 - 1) / 3  # of the larger one, whose variance is four times the other's
    blocks[:, 0] = power + 128 + (np.arange(len(blocks)) * 0.618 % 1 < share)
    return blocks


def by_small_floats(quant: QuantType, blocks: Bytes, scale: float) -> Bytes:
    """NVFP4: a float of 8 bits for each group, the nearest below and above in turn."""
    bits = np.arange(1, 126, dtype=np.uint8)
    found = np.zeros((125, quant.bytes), np.uint8)
    found[:, 0], found[:, 4] = bits, 2  # the value 1 is code 2
    values = dequantize(quant, found.reshape(1, -1)).reshape(-1, quant.block)[:, 0]
    above = int(np.searchsorted(values, scale))
    share = (scale**2 - values[above - 1] ** 2) / (values[above] ** 2 - values[above - 1] ** 2)
    larger = (np.arange(len(blocks) * 4) * 0.618 % 1 < share).reshape(-1, 4)
    blocks[:, :4] = np.where(larger, bits[above], bits[above - 1])
    return blocks


SCALED: Mapping[str, Callable[[QuantType, Bytes, float], Bytes]] = {
    "Q8_K": by_single,
    "IQ1_M": by_nibbles,
    "MXFP4": by_exponent,
    "NVFP4": by_small_floats,
}


def floats(quant: QuantType, values: NDArray[np.float32]) -> Bytes:
    """Floats in a float type, uint8 [values, bytes]."""
    if quant.name == "BF16":
        raw = (values.view(np.uint32) >> 16).astype("<u2")
    else:
        raw = values.astype({"F32": "<f4", "F16": "<f2"}[quant.name])
    return raw.view(np.uint8).reshape(-1, quant.bytes)


Row = tuple[str, QuantType, tuple[int, ...], Callable[[], Bytes]]


def tensors(shape: Shape, mix: Mix, weights: Weights) -> Iterator[Row]:
    """The tensors of a qwen2 model, in llama.cpp's order."""
    s, f32 = shape, by_name("F32")
    kv = s.width // s.heads * s.heads_kv

    def matrix(name: str, rows: int, columns: int, layer: int = 0) -> Row:
        quant = tensor_type(mix, name, layer, s.layers, columns)
        full = name if name == "token_embd" else f"blk.{layer}.{name}"
        make = partial(weights.data, quant, (rows, columns), columns**-0.5)
        return f"{full}.weight", quant, (rows, columns), make

    def vector(name: str, size: int, mean: float) -> Row:
        values = (mean + 0.02 * weights.random.standard_normal(size)).astype("<f4").view(np.uint8)
        return name, f32, (size,), lambda: values

    yield matrix("token_embd", s.vocabulary, s.width)
    for i in range(s.layers):
        yield vector(f"blk.{i}.attn_norm.weight", s.width, 1.0)
        for name, rows in (("attn_q", s.width), ("attn_k", kv), ("attn_v", kv)):
            yield matrix(name, rows, s.width, i)
            yield vector(f"blk.{i}.{name}.bias", rows, 0.0)
        yield matrix("attn_output", s.width, s.width, i)
        yield vector(f"blk.{i}.ffn_norm.weight", s.width, 1.0)
        yield matrix("ffn_gate", s.n_ff, s.width, i)
        yield matrix("ffn_up", s.n_ff, s.width, i)
        yield matrix("ffn_down", s.width, s.n_ff, i)
    yield vector("output_norm.weight", s.width, 1.0)


def model_keys(name: str, shape: Shape, mix: Mix) -> dict[str, Any]:
    counts = {
        "context_length": 32_768,
        "block_count": shape.layers,
        "embedding_length": shape.width,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.heads_kv,
    }
    return {
        "general.architecture": "qwen2",
        "general.name": f"random {name}",
        **({} if mix.file_type is None else {"general.file_type": Value(ValueType.UINT32, mix.file_type)}),
        **{f"qwen2.{key}": Value(ValueType.UINT32, count) for key, count in counts.items()},
        "qwen2.attention.layer_norm_rms_epsilon": Value(ValueType.FLOAT32, 1e-6),
        "qwen2.rope.freq_base": Value(ValueType.FLOAT32, 1e6),
    }


def vocabulary_keys(size: int, file: Path | None) -> dict[str, Any]:
    """A tokenizer of `size` tokens: the file's where it has one that fits, else of bytes alone."""
    if file is None or not file.is_file():
        return filled(byte_keys(), size)
    with GGUFFile.open(file) as held:
        keys = {key: held.metadata.typed(key) for key in held.metadata if key.startswith("tokenizer.")}
    return filled(keys if len(keys["tokenizer.ggml.tokens"].value) <= size else byte_keys(), size)


def byte_keys() -> dict[str, Any]:
    """A byte-level BPE without a merge but one: GPT-2's letters for the 256 bytes, and an end token."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(byte) for byte in plain] + [chr(0x100 + n) for n in range(256 - len(plain))]
    tokens = [*letters, "in", "<|endoftext|>"]
    end = Value(ValueType.UINT32, len(tokens) - 1)
    return {
        "tokenizer.ggml.model": Value(ValueType.STRING, "gpt2"),
        "tokenizer.ggml.pre": Value(ValueType.STRING, "qwen2"),
        "tokenizer.ggml.tokens": Value(ValueType.STRING, tokens),
        "tokenizer.ggml.token_type": Value(ValueType.INT32, np.array([1] * 257 + [3], np.int32)),
        "tokenizer.ggml.merges": Value(ValueType.STRING, ["i n"]),
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.add_bos_token": Value(ValueType.BOOL, False),
    }


def filled(keys: dict[str, Any], size: int) -> dict[str, Any]:
    """The vocabulary filled up with unused tokens (type 5)."""
    texts, kinds = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
    missing = size - len(keys[texts].value)
    more = [f"[PAD{n}]" for n in range(missing)]
    tokens = [*keys[texts].value, *more]
    types = np.concatenate([np.asarray(keys[kinds].value, np.int32), np.full(missing, 5, np.int32)])
    return {
        **keys,
        texts: Value(ValueType.STRING, tokens),
        kinds: Value(ValueType.INT32, types),
    }


def make_model(
    path: Path, name: str, kind: str, *, vocabulary: Path | None = VOCABULARY, seed: int = 1
) -> Path:
    """Write the model of a shape and a mix, and return its path. Raises RequestError for an unknown name."""
    for wanted, table in ((name, SHAPES), (kind, MIXES)):
        if wanted not in table:
            raise RequestError(f"{wanted!r} is unknown", fix=f"use one of {', '.join(table)}")
    shape, mix = SHAPES[name], MIXES[kind]
    keys = {**model_keys(name, shape, mix), **vocabulary_keys(shape.vocabulary, vocabulary)}
    write(path, keys, tensors(shape, mix, Weights(seed)))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description="write a GGUF model with random weights")
    parser.add_argument("shape", help=f"one of {', '.join(SHAPES)}")
    parser.add_argument("type", nargs="+", help=f"one or more of {', '.join(MIXES)}")
    parser.add_argument("-o", "--folder", type=Path, default=Path(tempfile.gettempdir(), "puna-bench"))
    parser.add_argument("--vocab", type=Path, default=VOCABULARY, help="GGUF file to take the tokenizer from")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    try:
        for kind in args.type:
            file = args.folder / f"{args.shape}-{kind}.gguf"
            make_model(file, args.shape, kind.lower(), vocabulary=args.vocab, seed=args.seed)
            sys.stdout.write(f"{file}\n")
    except PunaError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
