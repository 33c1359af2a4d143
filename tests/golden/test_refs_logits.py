"""Real models against ../shared/refs: logits of the same weights in F32, and greedy continuations."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import puna
from puna.settings import Settings

REFS = Path(__file__).resolve().parents[3] / "shared" / "refs"
MODELS = {"smollm2": "smollm2-135m", "gemma3": "gemma3-270m"}


@functools.cache
def loaded(name: str, backend: str = "reference") -> puna.Model:
    path = Settings.from_environment().models / f"{MODELS[name]}.gguf"
    if not REFS.exists():
        pytest.skip("reference data ../shared/refs is not here")
    if not path.exists():
        pytest.skip(f"{path.stem} is not pulled: puna pull {MODELS[name].replace('-', ':')}")
    return puna.load(path, backend=backend, n_ctx=512)


def reference(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((REFS / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_a_passage(name: str) -> None:
    """The normalised mean squared error against the F32 truth is at most 1e-5."""
    model = loaded(name)
    truth = np.load(REFS / f"{name}.npz")
    got = model.logits(truth["tokens"])[truth["positions"]]
    assert np.mean((got - truth["logits"]) ** 2) <= 1e-5 * np.mean(truth["logits"] ** 2)


@pytest.mark.parametrize("name", MODELS)
def test_perplexity_of_a_passage(name: str) -> None:
    """Perplexity of the passage equals the F32 truth's to a thousandth."""
    model = loaded(name)
    ids = np.load(REFS / f"{name}.npz")["tokens"]
    logits = model.logits(ids)[:-1].astype(np.float64)
    spread = logits - logits.max(axis=1, keepdims=True)
    chosen = spread[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(spread).sum(axis=1))
    assert np.exp(-chosen.mean()) == pytest.approx(reference(name)["passage_perplexity_f32"], rel=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_a_passage_on_the_cpu(name: str) -> None:
    """On the CPU backend, whose activations are quantised, the error is at most llama.cpp's own."""
    model, expected = loaded(name, "cpu"), reference(name)
    truth = np.load(REFS / f"{name}.npz")
    got = model.logits(truth["tokens"])[truth["positions"]].astype(np.float64)
    want = truth["logits"].astype(np.float64)
    errors = np.mean((got - want) ** 2, axis=1) / np.mean(want**2, axis=1)
    assert errors.mean() <= 1.05 * expected["llamacpp_nmse_mean"]
    assert np.mean(got.argmax(axis=1) == want.argmax(axis=1)) >= expected["llamacpp_top1_agree"]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_continuations(name: str, backend: str) -> None:
    """The first 16 greedy tokens are the reference's, or where they first differ the two were nearly tied.

    The reference ran with quantised activations. Its error against the F32 truth is known, so two logits closer than
    two standard deviations of the difference of two such errors are a tie that it could turn either way.
    """
    model, expected = loaded(name, backend), reference(name)
    for text, greedy in list(expected["greedy"].items())[:4]:
        prompt, want = model.tokenize(text), greedy["ids"][:16]
        logits = model.logits(prompt + want)[len(prompt) - 1 : -1]  # before each token of the reference
        gaps = logits.max(axis=1) - logits[np.arange(len(want)), want]
        noise = 2 * np.sqrt(2 * expected["llamacpp_nmse_mean"] * np.mean(logits**2, axis=1))
        for i in np.flatnonzero(gaps):
            print(f"{text!r}: token {i} would be another by {gaps[i]:.3f} (noise {noise[i]:.3f})")
        assert (gaps <= noise).all()
        assert np.count_nonzero(gaps) <= 2
        stream = model.stream(prompt, len(want), temp=0)
        list(stream)
        same = int(np.argmax(np.append(gaps, 1.0) > 0))
        assert stream.ids[:same] == want[:same]
