"""Random-weight models of ../shared/archs against llama.cpp's logits for the same weights (F32 weights and cache)."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest

import puna
from puna.gguf import GGUFFile
from puna.gguf import write as write_gguf
from puna.quants import by_name, dequantize, quantize

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

# Those that the CPU backend has kernels for -> largest error with F32 weights, and with matrices in Q8_0.
ON_CPU = {
    "gemma3-dense": (1e-6, 1e-3),
    "llama-dense": (1e-9, 5e-3),
    "mistral3-dense": (1e-9, 5e-3),
    "qwen2-dense": (1e-9, 5e-3),
    "qwen3-dense": (1e-9, 5e-3),
}
CACHES: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32"}


@pytest.fixture(scope="module", autouse=True)
def code_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are kept in a folder of these tests."""
    folder = tmp_path_factory.mktemp("code")
    with mock.patch("platformdirs.user_cache_path", return_value=folder):
        yield


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


@pytest.mark.parametrize("batch", [512, 7, 1])
@pytest.mark.parametrize("name", ON_CPU)
def test_logits_on_the_cpu(name: str, batch: int, model_file: Callable[[str], Path]) -> None:
    """The CPU backend gives llama.cpp's logits too, with a cache of F32."""
    reference = np.load(ARCHS / f"{name}.npz")
    model = puna.load(model_file(name), backend="cpu", threads=1, n_ctx=64, **CACHES)
    assert error(model.logits(reference["tokens"], batch=batch), reference["logits"]) <= ON_CPU[name][0]


@pytest.mark.parametrize("name", ON_CPU)
def test_logits_of_quantised_weights_on_the_cpu(
    name: str, model_file: Callable[[str], Path], tmp_path: Path
) -> None:
    """With matrices in Q8_0, and activations in 8 bits, the logits stay close to those of F32."""
    reference, path = np.load(ARCHS / f"{name}.npz"), tmp_path / "q8_0.gguf"
    with GGUFFile.open(model_file(name)) as file:
        tensors = []
        for tensor, info in file.tensors.items():
            kind = by_name("Q8_0") if len(info.shape) == 2 else info.quant
            values = dequantize(info.quant, file.data(tensor))
            tensors.append((tensor, kind, info.shape, quantize(kind, values)))
        write_gguf(path, file.metadata, tensors)
    model = puna.load(path, backend="cpu", threads=1, n_ctx=64, **CACHES)
    off = error(model.logits(reference["tokens"]), reference["logits"])
    assert 0 < off <= ON_CPU[name][1]
