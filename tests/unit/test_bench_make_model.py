"""The models that bench/make_model.py writes: valid, sane, and mixed as llama-quantize mixes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import puna
from puna.errors import RequestError
from puna.gguf import GGUFFile
from puna.quants import dequantize

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import make_model as maker

make: Any = maker


@pytest.mark.parametrize("kind", list(make.MIXES))
def test_models_run(tmp_path: Path, kind: str) -> None:
    """Every mix loads, its tokenizer takes text, and its logits are finite and not all alike."""
    path = make.make_model(tmp_path / "a.gguf", "qwen2-tiny", kind, vocabulary=None)
    model = puna.load(path, backend="reference", n_ctx=64)
    ids = model.tokenize("in the beginning")
    assert model.detokenize(ids) == "in the beginning"
    logits = model.logits(ids)
    assert np.isfinite(logits).all()
    assert 0.05 < logits.std() < 50


@pytest.mark.parametrize("kind", list(make.MIXES))
def test_values_are_spread_as_a_trained_models(tmp_path: Path, kind: str) -> None:
    """A matrix has a mean near 0 and a deviation of 1 / sqrt(columns), whatever its type."""
    with GGUFFile.open(make.make_model(tmp_path / "a.gguf", "qwen2-tiny", kind, vocabulary=None)) as file:
        for name in ("blk.0.ffn_gate.weight", "blk.0.ffn_down.weight", "token_embd.weight"):
            info = file.tensors[name]
            values = dequantize(info.quant, file.data(name))
            expected = info.shape[1] ** -0.5
            assert abs(values.mean()) < 0.15 * expected
            assert values.std() == pytest.approx(expected, rel=0.1)
            assert len(np.unique(values, axis=0)) == len(values)


def test_mixes_are_llama_quantizes() -> None:
    """Q4_K_M has Q6_K for the output and, in half of the layers, for attn_v and ffn_down; Q4_0 for the output."""
    mix = make.MIXES["q4_k_m"]
    more = [i for i in range(28) if make.tensor_type(mix, "ffn_down", i, 28, 8960).name == "Q6_K"]
    assert more == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
    assert more == [i for i in range(28) if make.tensor_type(mix, "attn_v", i, 28, 1536).name == "Q6_K"]
    assert make.tensor_type(mix, "ffn_up", 0, 28, 1536).name == "Q4_K"
    assert make.tensor_type(mix, "token_embd", 0, 28, 1536).name == "Q6_K"
    assert make.tensor_type(make.MIXES["q4_0"], "token_embd", 0, 28, 1536).name == "Q6_K"
    assert make.tensor_type(make.MIXES["q4_0"], "ffn_down", 0, 28, 8960).name == "Q4_0"
    assert make.tensor_type(make.MIXES["q8_0"], "token_embd", 0, 28, 1536).name == "Q8_0"


def test_rows_that_do_not_divide_fall_back() -> None:
    """Where 256 does not divide a row, the types that llama-quantize falls back to."""
    mix = make.MIXES["q4_k_m"]
    assert make.tensor_type(mix, "attn_q", 3, 24, 896).name == "Q5_0"
    assert make.tensor_type(mix, "token_embd", 0, 24, 896).name == "Q8_0"
    assert make.tensor_type(mix, "ffn_up", 3, 24, 896).name == "Q5_0"
    assert make.tensor_type(mix, "ffn_down", 3, 24, 4864).name == "Q4_K"


def test_a_seed_decides_every_byte(tmp_path: Path) -> None:
    """The same seed gives the same file, another one another."""
    first, again, other = (
        make.make_model(tmp_path / f"{i}.gguf", "qwen2-tiny", "q4_0", vocabulary=None, seed=seed).read_bytes()
        for i, seed in enumerate((1, 1, 2))
    )
    assert first == again
    assert first != other


def test_a_vocabulary_is_taken_from_a_file(tmp_path: Path) -> None:
    """Tokens of a given file come first and unused ones fill up; a file with too many is passed over."""
    source = make.make_model(tmp_path / "v.gguf", "qwen2-tiny", "q4_0", vocabulary=None)
    with GGUFFile.open(source) as file:
        held = list(file.metadata["tokenizer.ggml.tokens"])
    for size, expected in ((600, [*held, *(f"[PAD{i}]" for i in range(88))]), (300, None)):
        keys = make.vocabulary_keys(size, source)
        tokens = list(keys["tokenizer.ggml.tokens"].value)
        assert len(tokens) == len(keys["tokenizer.ggml.token_type"].value) == size
        assert expected is None or tokens == expected


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    """An unknown shape or type is an error that lists the known ones."""
    with pytest.raises(RequestError, match="qwen2-tiny"):
        make.make_model(tmp_path / "a.gguf", "qwen9", "q4_0")
    with pytest.raises(RequestError, match="q4_k_m"):
        make.make_model(tmp_path / "a.gguf", "qwen2-tiny", "q9")
