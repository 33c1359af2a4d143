"""Every backend against the contract: passes keep the numbers, and the reference backend is the oracle."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

from puna import backends, plan
from puna.backends import Backend
from puna.cache import KVCache
from puna.errors import BackendError
from puna.gguf import GGUFFile
from puna.graph import Graph, check
from puna.models.registry import build

IDS = np.random.default_rng(2).integers(0, 280, 90).tolist()
ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]


def logits(
    backend: Backend, graph: Graph, file: GGUFFile, rows: list[int], row_ops: Collection[str] = ()
) -> np.ndarray:
    """Logits of some rows of IDS, by running a graph as it is."""
    kv = plan.KVLayout.of(graph, 128, "F32", "F32")
    steps = plan.make_plan(
        graph, tokens=len(IDS), rows=len(IDS), kv=kv, scratch=backend.scratch, row_ops=row_ops
    )
    program = backend.compile(steps, backend.upload(graph, file, None))
    cache = KVCache(kv, 128)
    out = np.empty((len(rows), graph.output.type.shape[1]), np.float32)
    backend.run(program, cache.append((cache.open(), IDS), outputs=rows), out)
    return out


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_passes_keep_the_numbers(architecture: str, tmp_path: Path) -> None:
    """After each pass the spec holds and the oracle gives what it gave before, for all rows and for some."""
    backend = backends.create("reference")
    with GGUFFile.open(write_tiny(tmp_path / "m.gguf", architecture=architecture)) as file:
        graph, _ = build(file)
        want = logits(backend, graph, file, list(range(len(IDS))))
        for run in [*plan.PASSES.values(), plan.expand]:
            graph = run(graph)
            check(graph)
            for rows in (list(range(len(IDS))), [0, 7, 89], []):
                got = logits(backend, graph, file, rows)
                np.testing.assert_allclose(got, want[rows], atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_passes_keep_the_bits_on_the_cpu(architecture: str, tmp_path: Path) -> None:
    """After each pass, and with row operations joined or one by one, the bits are the same, near the oracle's."""
    backend, oracle = backends.create("cpu", 1), backends.create("reference")
    joined = backend.describe().row_ops
    with GGUFFile.open(write_tiny(tmp_path / "m.gguf", architecture=architecture)) as file:
        graph, _ = build(file)
        want = logits(oracle, graph, file, list(range(len(IDS))))
        first = logits(backend, graph, file, list(range(len(IDS))))
        assert np.mean((first - want) ** 2) <= 1e-10 * np.mean(want**2)
        for run in [*plan.PASSES.values(), plan.expand]:
            graph = run(graph)
            for row_ops in ((), joined):
                np.testing.assert_array_equal(
                    logits(backend, graph, file, [0, 7, 89], row_ops), first[[0, 7, 89]]
                )
        assert logits(backend, graph, file, [], joined).shape == (0, first.shape[1])


@pytest.mark.parametrize("quant", ["F16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_quantised_weights_on_the_cpu(architecture: str, quant: str, tmp_path: Path) -> None:
    """The oracle's logits for the same weights, but for activations in 8 bits where weights are quantised."""
    backend, oracle = backends.create("cpu", 1), backends.create("reference")
    path = write_tiny(tmp_path / "m.gguf", architecture=architecture, quant=quant)
    rows = list(range(len(IDS)))
    with GGUFFile.open(path) as file:
        graph, _ = build(file)
        want = logits(oracle, plan.lower(graph, oracle.describe().ops), file, rows)
        about = backend.describe()
        got = logits(backend, plan.lower(graph, about.ops), file, rows, about.row_ops)
    off = np.mean((got - want) ** 2) / np.mean(want**2)
    assert off <= (1e-10 if quant == "F16" else 1e-3)


@pytest.mark.parametrize("name", backends.NAMES)
def test_description(name: str) -> None:
    """A backend says what it is, and has kernels for every plain operation that models use."""
    about = backends.create(name).describe()
    assert about.free > 0
    assert about.device
    assert {"embed", "linear", "attend", "kv_store", "rope", "add"} <= about.ops
    assert about.kv_type(None) == about.kv_types[0]
    assert about.kv_type("f16") == "F16"
    with pytest.raises(BackendError, match="no KV cache of type 'q9'; use one of"):
        about.kv_type("q9")


@pytest.mark.parametrize("name", backends.NAMES)
def test_threads_are_honoured(name: str) -> None:
    """The number of threads asked for is the number described."""
    assert backends.create(name, 1).describe().device.endswith(", 1 thread")


def test_unknown_backend() -> None:
    """A name that does not exist lists those that do."""
    with pytest.raises(BackendError, match="no backend is called 'gpu'; choose auto, cpu, reference, blas"):
        backends.create("gpu")
