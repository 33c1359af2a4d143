"""Configuration, weights and graphs of models; what is wrong with a file is named before anything is allocated."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny

import puna
from puna.errors import ModelError, PunaError
from puna.gguf import GGUFFile, Value, ValueType, write
from puna.graph import Graph
from puna.models import Decoder
from puna.models.config import ModelConfig
from puna.models.registry import architectures, build, find


def opened(path: Path) -> tuple[Graph, ModelConfig]:
    with GGUFFile.open(path) as file:
        return build(file)


def u32(value: int) -> Value:
    return Value(ValueType.UINT32, value)


def rewrite(
    path: Path, out: Path, drop: str = "", extra: str = "", shape: dict[str, Any] | None = None
) -> Path:
    """A copy of a model with one tensor left out, added, or of another shape."""
    with GGUFFile.open(path) as file:
        tensors = [
            (t.name, t.quant, t.shape, file.data(t.name)) for t in file.tensors.values() if t.name != drop
        ]
        if extra:
            tensors.append((extra, *tensors[-1][1:]))
        for name, new in (shape or {}).items():
            tensors = [
                (n, q, new, np.zeros((*new[:-1], q.row_bytes(new[-1])), np.uint8))
                if n == name
                else (n, q, s, d)
                for n, q, s, d in tensors
            ]
        write(out, file.metadata, tensors)
    return out


def test_registry() -> None:
    """Each architecture name leads to one class whose file bears an architecture's name."""
    found = architectures()
    assert {"llama", "mistral3", "qwen2", "qwen3", "gemma3"} <= set(found)
    for cls in found.values():
        stem = cls.__module__.rsplit(".", 1)[-1]
        assert stem in {name.replace("-", "_") for name in cls.names}
        assert issubclass(cls, Decoder)


def test_unknown_architecture() -> None:
    """The error lists the nearest names and says how to add one."""
    with pytest.raises(ModelError, match=r"'qwen33' is not supported \(nearest: qwen3, .*add-a-model.md"):
        find("qwen33", "file")


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_missing_keys_are_named(key: str, tmp_path: Path) -> None:
    """A hyper-parameter that has no default is named with the file."""
    path = write_tiny(tmp_path / "m.gguf", metadata={f"llama.{key}": None})
    with pytest.raises(ModelError, match=rf"m\.gguf: missing metadata key 'llama\.{key}'"):
        opened(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", u32(0), "0 is not between 1"),
        ("block_count", u32(2**32 - 1), "4294967295 is not between 1"),
        ("block_count", u32(3), r"'llama': 9 tensors missing: 'blk\.2\.attn_norm\.weight', .*, \.\.\."),
        ("block_count", u32(1), r"'llama': 9 tensors without a place: 'blk\.1\.attn"),
        ("embedding_length", u32(128), r"'token_embd\.weight' has shape \[\d+, 64\].* asks for \[any, 128\]"),
        ("attention.head_count", u32(8), r"tensor 'blk\.0\.attn_k\.weight' has shape"),
        ("attention.head_count", u32(0), "head_count"),
        ("attention.head_count_kv", u32(3), "head"),
        ("attention.head_count_kv", Value(ValueType.UINT32, [2, 2, 2]), "3 values for 2 layers"),
        ("attention.key_length", u32(2**31), "key_length"),
        ("rope.dimension_count", u32(7), "rotate"),
        ("rope.dimension_count", u32(64), "rotate"),
        ("rope.scaling.type", "cubic", "no RoPE scaling is called 'cubic'"),
        ("rope.freq_base", Value(ValueType.FLOAT32, float("nan")), "out of range"),
        ("attention.layer_norm_rms_epsilon", Value(ValueType.FLOAT32, -1.0), "out of range"),
        ("logit_scale", Value(ValueType.FLOAT32, [1.0, 2.0]), "logit_scale': an array is not supported"),
        ("expert_count", u32(4), "cannot use 0 of 4 experts"),
    ],
)
def test_impossible_values_are_named(key: str, value: object, message: str, tmp_path: Path) -> None:
    """A hyper-parameter that does not fit the file is a one-line error that names it or the tensor it hits."""
    path = write_tiny(tmp_path / "m.gguf", metadata={f"llama.{key}": value})
    with pytest.raises(PunaError, match=message) as caught:
        opened(path)
    assert "\n" not in str(caught.value)


def test_missing_left_over_and_misshapen_tensors(tmp_path: Path) -> None:
    """Each is refused by name."""
    path, out = write_tiny(tmp_path / "m.gguf"), tmp_path / "out.gguf"
    with pytest.raises(
        ModelError, match=r"architecture 'llama': 1 tensor missing: 'blk\.1\.ffn_up\.weight'$"
    ):
        opened(rewrite(path, out, drop="blk.1.ffn_up.weight"))
    with pytest.raises(ModelError, match=r"'llama': 1 tensor without a place: 'blk\.0\.extra\.weight'$"):
        opened(rewrite(path, out, extra="blk.0.extra.weight"))
    with pytest.raises(
        ModelError, match=r"1 tensor missing: 'token_embd.weight'; 1 tensor without a place: 'cl'"
    ):
        opened(rewrite(path, out, drop="token_embd.weight", extra="cl"))
    with pytest.raises(
        ModelError, match=r"'blk\.0\.attn_q\.weight' has shape \[64, 32\].*asks for \[64, 64\]"
    ):
        opened(rewrite(path, out, shape={"blk.0.attn_q.weight": (64, 32)}))
    with pytest.raises(ModelError, match=r"'output_norm\.weight' has shape \[2, 32\]"):
        opened(rewrite(path, out, shape={"output_norm.weight": (2, 32)}))


def test_tied_output(tmp_path: Path) -> None:
    """Without an output matrix the embedding serves again."""
    tied = rewrite(write_tiny(tmp_path / "m.gguf"), tmp_path / "tied.gguf", drop="output.weight")
    graph, _ = opened(tied)
    assert graph.output.inputs[1].attrs["tensor"] == "token_embd.weight"


def test_sliding_windows(tmp_path: Path) -> None:
    """Gemma 3 has a window and a base of its own on windowed layers; the pattern may be a number or flags."""
    for pattern, windows in ((None, [32, 32]), (u32(2), [32, 0]), ([False, True], [0, 32])):
        path = write_tiny(
            tmp_path / "m.gguf",
            architecture="gemma3",
            metadata={"gemma3.attention.sliding_window_pattern": pattern, "gemma3.rope.freq_base": 1e6},
        )
        graph, _ = opened(path)
        assert [n.attrs["window"] for n in graph.nodes if n.op == "attend"] == windows
        bases = [n.attrs["rope"].base for n in graph.nodes if n.op == "rope"][::2]  # type: ignore[attr-defined]
        assert bases == [10000.0 if window else 1e6 for window in windows]


def test_random_damage_never_surprises(tmp_path: Path) -> None:
    """A model file with random hyper-parameters or damaged bytes loads and runs, or is refused in one line."""
    source = write_tiny(tmp_path / "m.gguf").read_bytes()
    rng = random.Random(7)
    target, outcomes = tmp_path / "damaged.gguf", {True: 0, False: 0}
    header = source.index(b"token_embd.weight") + 4000
    for _ in range(400):
        data = bytearray(source)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(8, header)
            data[place : place + 1] = rng.randbytes(1)
        target.write_bytes(data)
        error = refusal(target)
        assert "\n" not in str(error)
        outcomes[error is None] += 1
    assert min(outcomes.values()) > 20, outcomes


def refusal(path: Path) -> PunaError | None:
    """Why a file is refused, or None where it loads and runs."""
    try:
        with np.errstate(all="ignore"):
            puna.load(path, backend="reference", n_ctx=16).logits([0])
    except PunaError as error:
        return error
    return None
