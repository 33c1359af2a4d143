"""Encoders on the CPU backend against the reference backend, several texts in a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from random_encoders import ENCODERS, write_encoder

import puna

TEXTS = [[5 + (7 * n + 3 * m) % 13 for n in range(count)] for m, count in enumerate((9, 1, 90, 20))]


def off(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.mean((got - want) ** 2) / np.mean(want**2))


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_on_the_cpu(name: str, tmp_path: Path) -> None:
    """The CPU backend gives the reference backend's vectors, and of each text alone the same bits."""
    path = write_encoder(tmp_path / "x.gguf", name)
    how = {"threads": 1, "cache_type_k": "f32", "cache_type_v": "f32", "n_ctx": 128}
    want = puna.load(path, backend="reference", **how).embed(TEXTS, -1)
    cpu = puna.load(path, backend="cpu", **how)
    got = cpu.embed(TEXTS, -1)
    assert got.shape == (sum(map(len, TEXTS)), 64)
    assert off(got, want) <= 1e-10
    np.testing.assert_array_equal(np.concatenate([cpu.embed(text, -1) for text in TEXTS]), got)


@pytest.mark.parametrize("name", ["bert", "neo-bert"])
def test_quantised_encoders_on_the_cpu(name: str, tmp_path: Path) -> None:
    """With matrices in Q8_0 and activations in 8 bits the vectors stay close, and alone they have the same bits."""
    how = {"threads": 2, "n_ctx": 128}
    want = puna.load(write_encoder(tmp_path / "x.gguf", name), backend="reference", **how).embed(TEXTS, -1)
    cpu = puna.load(write_encoder(tmp_path / "y.gguf", name, quant="Q8_0"), backend="cpu", **how)
    got = cpu.embed(TEXTS, -1)
    assert 0 < off(got, want) <= 5e-3
    np.testing.assert_array_equal(np.concatenate([cpu.embed(text, -1) for text in TEXTS]), got)
