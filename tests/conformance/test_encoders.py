"""Encoders with random weights, against vectors that llama.cpp gave for the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from random_encoders import ENCODERS, write_encoder

import puna

IDS = [5 + 7 * n % 13 for n in range(30)]
# The first values of token 17's vector, by llama.cpp (llama-cpp-python 0.3.36).
VALUES = {
    "bert": (0.08734, 0.01709, -0.68789, 0.50167, 0.33520),
    "nomic-bert": (0.25158, 0.74872, 0.58507, -0.20223, 0.08788),
    "nomic-bert-moe": (-0.58917, 0.77014, 1.20458, 0.45870, -0.77936),
    "jina-bert-v2": (-1.49985, 0.47891, 0.86647, -0.01741, 0.01710),
    "jina-bert-v2 of three": (1.20990, 4.10177, 0.09535, -0.95371, -0.16229),
    "jina-bert-v3": (0.07929, -0.89405, 0.22430, -1.23033, 2.33336),
    "modern-bert": (-0.16272, 0.61043, -0.00575, 0.49788, -0.50554),
    "neo-bert": (-0.65747, -2.08739, -0.16808, 0.33627, -1.85450),
}
EXACT = {
    "nomic-bert",
    "neo-bert",
}  # the others have GELU, which llama.cpp approximates by tanh in half floats


@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_llama_cpps(name: str, tmp_path: Path) -> None:
    """Every architecture gives llama.cpp's vectors."""
    model = puna.load(write_encoder(tmp_path / "x.gguf", name), backend="reference", threads=1)
    got = model.embed(IDS, -1)[17, :5]
    np.testing.assert_allclose(got, VALUES[name], atol=2e-5 if name in EXACT else 4e-3)
