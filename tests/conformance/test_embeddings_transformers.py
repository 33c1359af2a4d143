"""Embeddings against transformers itself: random weights, written as a GGUF on the spot, the same vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arch_files import CACHES, error
from encoder_files import CASES, TOKENS, random_model, write_encoder

import puna

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and transformers

LARGEST_ERROR = 1e-10  # normalised mean squared error
LENGTHS = (50, 7, 1, 30)
POOLINGS = ("none", "mean", "cls", "last", "rank")


def texts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(5, TOKENS, count).tolist() for count in LENGTHS]


def hidden(model: Any, ids: list[int]) -> np.ndarray:
    """What the model makes of a text: the last layer's rows, or a classifier's scores."""
    with torch.no_grad():
        out = model(torch.tensor(ids)[None])
    rows: np.ndarray = (out.logits if "logits" in out else out.last_hidden_state[0]).numpy()
    return rows


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_embeddings_are_transformers(name: str, backend: str, tmp_path: Path) -> None:
    """Every token's vector, several texts in a step, is that of transformers; a text alone gives the same bits."""
    case = CASES[name]
    theirs = random_model(case)
    pooling = "rank" if name == "classifier" else "none"
    path = write_encoder(case, theirs, tmp_path / "x.gguf", POOLINGS.index(pooling))
    ours = puna.load(path, backend=backend, threads=1, pooling="auto", **CACHES)
    assert ours.config.unread == ()
    wanted = np.concatenate([hidden(theirs, ids) for ids in texts()])
    got = ours.embed(texts(), normalize=-1)
    assert error(got, wanted) <= LARGEST_ERROR
    if backend == "cpu":
        np.testing.assert_array_equal(np.concatenate([ours.embed(ids, normalize=-1) for ids in texts()]), got)


POOLED = {"mean": lambda rows: rows.mean(0), "cls": lambda rows: rows[0], "last": lambda rows: rows[-1]}


@pytest.mark.parametrize("pooling", POOLED)
def test_pooled_and_normalised(pooling: str, tmp_path: Path) -> None:
    """One vector a text, of length 1, pooled as the file says."""
    theirs = random_model(CASES["bert"])
    path = write_encoder(CASES["bert"], theirs, tmp_path / "x.gguf", POOLINGS.index(pooling))
    got = puna.load(path, backend="reference", threads=1).embed(texts())
    wanted = np.stack([POOLED[pooling](hidden(theirs, ids)) for ids in texts()])
    wanted /= np.linalg.norm(wanted, axis=-1, keepdims=True)
    assert error(got, wanted) <= LARGEST_ERROR
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), 1.0, rtol=1e-6)
