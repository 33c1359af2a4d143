"""Models whose tokens all see each other, against llama.cpp's logits for the same random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from arch_files import ARCHS, CACHES, Reference, check_quantised, error

import puna
from puna.errors import RequestError

pytestmark = pytest.mark.skipif(not ARCHS.exists(), reason="reference data ../shared/archs is not here")

# Fixture -> largest normalised mean squared error.
FIXTURES = {"dream-dense": 1e-10, "llada-dense": 1e-10, "llada-moe-moe": 1e-10, "rnd1-moe": 1e-10}
# Largest error with matrices in Q8_0 and activations in 8 bits; experts that are all but as good may change places.
QUANTISED = {"llada-moe-moe": 5e-2, "rnd1-moe": 5e-2}


def beside(model: puna.Model, tokens: list[int]) -> np.ndarray:
    """Logits after each token, in a step with two other texts around it."""
    others = [tokens[::-1][:9], tokens[5:40]]
    parts = [(model.cache.open(), ids) for ids in (others[0], tokens, others[1])]
    out = np.empty((len(tokens), model.n_vocab), np.float32)
    model.compute(parts, range(9, 9 + len(tokens)), out)
    for sequence, _ in parts:
        model.cache.close(sequence)
    return out


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", FIXTURES)
def test_logits_are_llama_cpps(name: str, backend: str, model_file: Callable[[str], Path]) -> None:
    """The whole text gives llama.cpp's logits; other texts beside it change none, and on the CPU no bit."""
    reference = Reference(name)
    model = puna.load(model_file(name), backend=backend, threads=1, n_ctx=192, **CACHES)
    whole = model.logits(reference.tokens)
    assert error(whole, reference.logits) <= FIXTURES[name]
    assert error(beside(model, reference.tokens), whole) <= (0.0 if backend == "cpu" else 1e-9)


@pytest.mark.parametrize("name", FIXTURES)
def test_logits_of_quantised_weights_on_the_cpu(
    name: str, model_file: Callable[[str], Path], tmp_path: Path
) -> None:
    """With matrices in Q8_0, and activations in 8 bits, the logits stay close to those of F32."""
    check_quantised(model_file(name), name, tmp_path / "q8_0.gguf", QUANTISED.get(name, 5e-3))


def test_a_text_takes_one_step(model_file: Callable[[str], Path]) -> None:
    """A text longer than a step, one that goes on, and writing are refused, each with a line of its own."""
    tokens = Reference("dream-dense").tokens
    model = puna.load(model_file("dream-dense"), backend="reference", threads=1, n_ctx=96, n_batch=32)
    with pytest.raises(
        RequestError, match=r"^48 tokens that all see each other take one step.* 32 at most.*-b"
    ):
        model.logits(tokens)
    with pytest.raises(RequestError, match="fills texts in, and does not continue them"):
        model.generate(tokens[:5])
    sequence, out = model.cache.open(), np.empty((1, model.n_vocab), np.float32)
    model.run(sequence, tokens[:5], [4], out)
    with pytest.raises(RequestError, match="both ways take one step; use a new sequence"):
        model.run(sequence, tokens[5:6], [0], out)
    assert len(sequence) == 5
