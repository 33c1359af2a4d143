"""Every backend against the contract: passes keep the numbers, and the reference backend is the oracle."""

from __future__ import annotations

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


def logits(backend: Backend, graph: Graph, file: GGUFFile, rows: list[int]) -> np.ndarray:
    """Logits of some rows of IDS, by running a graph as it is."""
    kv = plan.KVLayout.of(graph, 128, "F32", "F32")
    steps = plan.make_plan(graph, tokens=len(IDS), rows=len(IDS), kv=kv, scratch=backend.scratch)
    program = backend.compile(steps, backend.upload(graph, file, None))
    cache = KVCache(kv, 128)
    out = np.empty((len(rows), graph.output.type.shape[1]), np.float32)
    backend.run(program, cache.append((cache.open(), IDS), outputs=rows), out)
    return out


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
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


def test_threads_are_honoured() -> None:
    """The number of threads asked for is the number described."""
    assert "1 thread" in backends.create("reference", 1).describe().device


def test_unknown_backend() -> None:
    """A name that does not exist lists those that do."""
    with pytest.raises(BackendError, match="no backend is called 'gpu'; choose auto, cpu, reference, blas"):
        backends.create("gpu")
