"""Plans of models of any size, from their headers alone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cli_runs import puna

from puna.backends.cpu import backend
from puna.errors import RequestError
from puna.gguf import GGUFFile, Value, ValueType
from puna.gguf.writer import Tensor, encoded_header
from puna.plan import alignment
from puna.planning import prepare
from puna.quants import by_name

VOCABULARY = 32_000
# Layers, width, heads, key/value heads, feed-forward, as Llama has them from 1B to 405B.
SHAPES = {
    "1B": (16, 2048, 32, 8, 8192),
    "7B": (32, 4096, 32, 32, 11_008),
    "70B": (80, 8192, 64, 8, 28_672),
    "405B": (126, 16_384, 128, 8, 53_248),
}

THUMB = {"7B": 1 << 30, "70B": 640 << 20}  # bytes of keys and values in f16 for 2048 positions


def write_header(path: Path, name: str, kind: str = "Q4_0") -> Path:
    """A model without its numbers: the file is as long as it should be, and takes no room on the disk."""
    layers, width, heads, heads_kv, n_ff = SHAPES[name]
    kv = width // heads * heads_kv
    count = ValueType.UINT32
    keys = {
        "general.architecture": Value(ValueType.STRING, "llama"),
        "llama.context_length": Value(count, 131_072),
        "llama.embedding_length": Value(count, width),
        "llama.block_count": Value(count, layers),
        "llama.feed_forward_length": Value(count, n_ff),
        "llama.attention.head_count": Value(count, heads),
        "llama.attention.head_count_kv": Value(count, heads_kv),
        "llama.attention.layer_norm_rms_epsilon": Value(ValueType.FLOAT32, 1e-5),
        "llama.rope.dimension_count": Value(count, width // heads),
        "llama.vocab_size": Value(count, VOCABULARY),
        "tokenizer.ggml.model": Value(ValueType.STRING, "no_vocab"),
    }
    shapes = {"token_embd": (VOCABULARY, width), "output": (VOCABULARY, width), "output_norm": (width,)}
    for i in range(layers):
        parts = {
            "attn_q": (width, width),
            "attn_k": (kv, width),
            "attn_v": (kv, width),
            "attn_output": (width, width),
            "ffn_gate": (n_ff, width),
            "ffn_up": (n_ff, width),
            "ffn_down": (width, n_ff),
            "attn_norm": (width,),
            "ffn_norm": (width,),
        }
        shapes |= {f"blk.{i}.{part}": shape for part, shape in parts.items()}
    none = np.zeros(0, np.uint8)
    tensors = [
        Tensor(f"{part}.weight", by_name(kind if len(shape) > 1 else "F32"), shape, none)
        for part, shape in shapes.items()
    ]
    header = encoded_header(keys, tensors, 3, "<", 32)
    total = len(header) + 64 + sum(-(-tensor.nbytes // 32) * 32 for tensor in tensors)
    with path.open("wb") as file:
        file.write(header)
        try:
            file.truncate(total)
        except OSError as error:
            pytest.skip(f"no file with holes can be so long here: {error}")
    return path


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_needs_the_header_alone(name: str, tmp_path: Path) -> None:
    """The KV cache is the rule of thumb's, and packed weights take about the file's bytes, for any size of model."""
    path = write_header(tmp_path / "m.gguf", name)
    layers, width, heads, heads_kv, _ = SHAPES[name]
    with GGUFFile.open(path, mmap=False) as file:
        plan = prepare(file, backend="cpu", threads=2, n_ctx=2048)
        matrices = sum(t.nbytes for t in file.tensors.values() if t.name != "token_embd.weight")
        table = file.tensors["token_embd.weight"].nbytes
        read = prepare(file, backend="cpu", threads=2, n_ctx=2048, mmap=False)
    assert plan.memory["kv"] == THUMB.get(name, plan.memory["kv"])
    assert plan.memory["kv"] == 2 * layers * heads_kv * (width // heads) * 2 * 2048
    assert 1 <= plan.memory["weights"] / matrices < 1.02
    assert plan.mapped == table
    assert read.memory["weights"] == plan.memory["weights"] + table


def test_what_cannot_fit_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    """A context beyond all memory is refused in one line, with what would fit."""
    model = write_header(tmp_path / "m.gguf", "1B")
    result = puna("run", model, "-p", "x", "-c", 2_000_000_000, "--backend", "cpu")
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert "of memory (weights " in result.err
    assert "; lower the context (-c) to " in result.err or "take a smaller model" in result.err


def test_a_model_that_fits_as_it_lies_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where packed weights leave no room, the option that reads them from the mapped file is named, if it would do."""
    path, words = write_header(tmp_path / "m.gguf", "7B"), ("--backend", "cpu", "-t", 2)
    monkeypatch.setattr(backend, "free_memory", lambda: 2 << 30)
    out = puna("plan", path, *words).out
    assert (
        "\n  no context fits\n  with --no-repack, slower, as weights are read from the mapped file, " in out
    )
    told = puna("run", path, "-p", "x", "-c", 2048, *words).error
    assert "no context fits: 64 positions need 3.5 GiB of memory (weights 3.5 GiB, compute buffer " in told
    assert told.endswith(
        "2.0 GiB are free; take a smaller model, or --no-repack: slower, as weights are read from the mapped file"
    )
    told = puna("run", path, "-p", "x", "-c", 0, *words).error
    assert re.search(r"or --no-repack and a context \(-c\) of \d+ at most: slower", told)
    assert puna("run", path, "-p", "x", "--no-mmap", *words).error.endswith("; take a smaller model")


def test_an_alignment_moves_where_regions_begin_and_takes_nothing(tmp_path: Path) -> None:
    """However many tensors and values there are, a plan for huge pages is the plan without."""
    with GGUFFile.open(write_header(tmp_path / "m.gguf", "7B")) as file:
        plain, aligned = (prepare(file, backend="cpu", threads=2, mem_align=n) for n in (None, 1 << 21))
    assert aligned.memory == plain.memory


@pytest.mark.parametrize(
    ("asked", "told"),
    [("q8", "the nearest are q8_0"), ("FP16", "the nearest are f16, bf16"), ("x", "use one of f16, f32, ")],
)
def test_unknown_cache_types(asked: str, told: str, tmp_path: Path) -> None:
    """What is like it is named, or all of them."""
    result = puna("plan", write_header(tmp_path / "m.gguf", "1B"), "--backend", "cpu", "-ctk", asked)
    assert f"no KV cache of type '{asked}'; {told}" in result.error


def test_alignments() -> None:
    """A power of two that kernels can do with, or what they want; anything else is refused with the range."""
    assert [alignment(n) for n in (None, 64, 4096, 1 << 21)] == [64, 64, 4096, 1 << 21]
    for wrong in (0, -64, 32, 100, 1 << 31):
        with pytest.raises(RequestError, match=rf"{wrong} is impossible; use a power of two from 64 to"):
            alignment(wrong)
    with pytest.raises(RequestError, match="not a whole number"):
        alignment("64")  # type: ignore[arg-type]
