"""Random-weight models of ../shared/archs against llama.cpp's logits for the same weights (F32 weights and cache)."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import puna

ARCHS = Path(__file__).resolve().parents[3] / "shared" / "archs"
pytestmark = pytest.mark.skipif(not ARCHS.exists(), reason="reference data ../shared/archs is not here")

# Fixture -> largest normalised mean squared error. A new architecture adds its row.
FIXTURES = {
    "gemma3-dense": 1e-6,
    "llama-dense": 1e-6,
    "llama-moe": 1e-6,
    "mistral3-dense": 1e-6,
    "mistral3-moe": 1e-6,
    "qwen2-dense": 1e-6,
    "qwen3-dense": 1e-6,
}


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the GGUF file of a fixture for seed 1."""
    folder, written = tmp_path_factory.mktemp("archs"), {}

    def write(name: str) -> Path:
        if name not in written:
            written[name] = folder / f"{name}.gguf"
            fixture().write(json.loads((ARCHS / f"{name}.json").read_text()), 1, str(written[name]))
        return written[name]

    return write


def fixture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fixture", ARCHS / "fixture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Normalised mean squared error."""
    return float(np.mean((got - want) ** 2) / np.mean(want**2))


@pytest.mark.parametrize("batch", [512, 7, 1])
@pytest.mark.parametrize("name", FIXTURES)
def test_logits_are_llama_cpps(name: str, batch: int, model_file: Callable[[str], Path]) -> None:
    """The whole prompt, chunks of 7 and one by one all give llama.cpp's logits."""
    reference = np.load(ARCHS / f"{name}.npz")
    model = puna.load(model_file(name), backend="reference", n_ctx=64)
    got = model.logits(reference["tokens"], batch=batch)
    assert error(got, reference["logits"]) <= FIXTURES[name]
