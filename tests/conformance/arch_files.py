"""The random-weight models of ../shared/archs: their files, llama.cpp's logits, and how far off others are."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import puna
from puna.gguf import GGUFFile
from puna.gguf import write as write_gguf
from puna.quants import by_name, dequantize, quantize

__all__ = [
    "ARCHS",
    "CACHES",
    "Reference",
    "check_cpu",
    "check_quantised",
    "check_reference",
    "error",
    "median_error",
    "quantised",
    "write_model",
]

ARCHS = Path(__file__).resolve().parents[3] / "shared" / "archs"
# llama.cpp's logits are those of a cache of F32.
CACHES: Mapping[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32"}
# Keys that a specification leaves out, and what llama.cpp took for them.
KEYS: Mapping[str, Mapping[str, float]] = {"qwen2vl-dense": {"attention.layer_norm_rms_epsilon": 0.0}}
# Tokens of a chunk, and of how many in all.
CHUNKS = ((1, 16), (7, 48), (32, 48))


class Reference:
    """llama.cpp's tokens [48] and logits [48, vocabulary] for seed 1."""

    def __init__(self, name: str) -> None:
        with np.load(ARCHS / f"{name}.npz") as saved:
            self.tokens, self.logits = saved["tokens"].tolist(), saved["logits"]


@cache
def fixture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fixture", ARCHS / "fixture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_model(name: str, folder: Path) -> Path:
    """The GGUF file of a fixture for seed 1."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        spec = json.loads((ARCHS / f"{name}.json").read_text())
        spec["kv"] += [
            [f"{spec['arch']}.{key}", ["FLOAT32"], value] for key, value in KEYS.get(name, {}).items()
        ]
        fixture().write(spec, 1, str(path))
    return path


def quantised(path: Path, out: Path, kind: str = "Q8_0") -> Path:
    """A copy whose matrices are of another type, where whole blocks fill their rows."""
    quant = by_name(kind)
    with GGUFFile.open(path) as file:
        tensors = []
        for name, info in file.tensors.items():
            # Routers stay as they are, and so does what llama.cpp takes in F32 alone.
            is_matrix = name.endswith(".weight") and not re.search("norm|ffn_gate_inp|conv|_ape", name)
            is_matrix = is_matrix and len(info.shape) > 1 and info.shape[-1] % quant.block == 0
            values = dequantize(info.quant, file.data(name))
            to = quant if is_matrix else info.quant
            tensors.append((name, to, info.shape, quantize(to, values)))
        write_gguf(out, file.metadata, tensors)
    return out


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Normalised mean squared error."""
    return float(np.mean((got - want) ** 2) / np.mean(want**2))


def median_error(got: np.ndarray, want: np.ndarray) -> float:
    """The median token's mean squared error, normalised: in a mixture, rounding may tip a few tokens' experts."""
    return float(np.median(np.mean((got - want) ** 2, axis=-1)) / np.mean(want**2))


def check_reference(path: Path, name: str, most: float) -> None:
    """On the reference backend the whole prompt gives llama.cpp's logits; chunks and another sequence change none."""
    reference = Reference(name)
    model = puna.load(path, backend="reference", threads=1, n_ctx=96)
    whole = model.logits(reference.tokens)
    assert error(whole, reference.logits) <= most
    for batch, count in CHUNKS:
        assert error(model.logits(reference.tokens[:count], batch=batch), whole[:count]) <= 1e-9
    assert error(beside(model, reference.tokens), whole) <= 1e-9


def check_cpu(path: Path, name: str, most: float) -> np.ndarray:
    """The CPU backend gives them too, the same bits in chunks and beside another sequence; these logits."""
    reference = Reference(name)
    model = puna.load(path, backend="cpu", threads=1, n_ctx=96, **CACHES)
    whole = model.logits(reference.tokens)
    assert error(whole, reference.logits) <= most
    for batch, count in CHUNKS:
        np.testing.assert_array_equal(model.logits(reference.tokens[:count], batch=batch), whole[:count])
    np.testing.assert_array_equal(beside(model, reference.tokens), whole)
    return whole


def check_quantised(path: Path, name: str, out: Path, most: float) -> None:
    """With matrices in Q8_0, in a file `out`, and activations in 8 bits, the logits stay close to those of F32."""
    reference = Reference(name)
    model = puna.load(quantised(path, out), backend="cpu", threads=1, n_ctx=96, **CACHES)
    assert 0 < error(model.logits(reference.tokens), reference.logits) <= most


def beside(model: puna.Model, tokens: list[int]) -> np.ndarray:
    """Logits after each token, of a sequence that grows while another grows beside it, now before it, now after."""
    mine, other = model.cache.open(), model.cache.open()
    out, done, others = np.empty((len(tokens), model.n_vocab), np.float32), 0, tokens[::-1]
    for count, rows, is_first in ((5, 3, True), (1, 9, False), (20, 1, False), (len(tokens) - 26, 2, True)):
        part, rest = tokens[done : done + count], others[len(other) : len(other) + rows]
        parts = [(mine, part), (other, rest)][:: 1 if is_first else -1]
        start = 0 if is_first else rows
        batch = model.cache.append(*parts, outputs=range(start, start + count))
        model.backend.run(model.program, batch, out[done : done + count])
        done += count
    model.cache.close(mine)
    model.cache.close(other)
    return out
