"""Random-weight models with a state of ../shared/archs against llama.cpp's logits (F32 weights and cache)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from arch_files import (
    ARCHS,
    CACHES,
    Reference,
    check_cpu,
    check_reference,
    median_error,
    quantised,
    write_model,
)

import puna

pytestmark = pytest.mark.skipif(not ARCHS.exists(), reason="reference data ../shared/archs is not here")

EXACT = (
    "bailingmoe3-moe",
    "deepseek4-moe",
    "falcon-h1-dense",
    "glm5-next-moe",
    "granitehybrid-dense",
    "jamba-dense",
    "kimi-k3-moe",
    "kimi-linear-moe",
    "lfm2-dense",
    "lfm2moe-moe",
    "mamba-dense",
    "mamba2-dense",
    "minimax-01-moe",
    "nemotron_h-dense",
    "nemotron_h_moe-dense",
    "plamo2-dense",
    "qwen35-dense",
    "qwen35moe-moe",
    "qwen3next-moe",
    "qwen4exp-moe",
)
# Other shapes of these, and architectures of which ../shared/archs may have none.
MORE = (
    "arwkv7",
    "falcon-mamba",
    "granitehybrid-moe",
    "jamba-moe",
    "nemotron-latent",
    "nemotron-moe",
    "qwen35-grouped",
    "qwen3next-grouped",
    "qwen3next-legacy",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
)
# One of each kind, for the backend whose kernels take their time to compile: the others have the same operations.
KINDS = (
    "deepseek4-moe",
    "falcon-h1-dense",
    "glm5-next-moe",
    "jamba-dense",
    "kimi-k3-moe",
    "lfm2-dense",
    "minimax-01-moe",
    "plamo2-dense",
    "qwen35-dense",
    "qwen4exp-moe",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
)
# Largest normalised mean squared error.
MOST = 1e-10
# Largest error of the CPU backend with matrices in Q8_0 and activations in 8 bits.
QUANTISED = 5e-3


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the GGUF file of a fixture for seed 1."""
    folder = tmp_path_factory.mktemp("archs")

    def write(name: str) -> Path:
        if not (ARCHS / f"{name}.npz").exists():
            pytest.skip(f"reference data ../shared/archs/{name} is not here")
        return write_model(name, folder)

    return write


@pytest.mark.parametrize("name", EXACT + MORE)
def test_logits_are_llama_cpps(name: str, model_file: Callable[[str], Path]) -> None:
    """The whole prompt gives llama.cpp's logits; chunks of it, and another sequence beside it, change none."""
    check_reference(model_file(name), name, MOST)


@pytest.mark.parametrize("name", KINDS)
def test_logits_on_the_cpu(name: str, model_file: Callable[[str], Path]) -> None:
    """The CPU backend gives them too, the same bits in chunks, beside another sequence and on two threads."""
    path = model_file(name)
    whole = check_cpu(path, name, MOST)
    model = puna.load(path, backend="cpu", threads=2, n_ctx=96, **CACHES)
    np.testing.assert_array_equal(model.logits(Reference(name).tokens), whole)


@pytest.mark.parametrize("name", ["jamba-dense", "kimi-linear-moe", "qwen35-dense"])
def test_logits_of_quantised_weights(name: str, model_file: Callable[[str], Path], tmp_path: Path) -> None:
    """With matrices in Q8_0 most tokens' logits are close; of others the rounding may tip a choice of experts."""
    reference, path = Reference(name), quantised(model_file(name), tmp_path / "q8_0.gguf")
    model = puna.load(path, backend="cpu", threads=1, n_ctx=96, **CACHES)
    assert 0 < median_error(model.logits(reference.tokens), reference.logits) <= QUANTISED


@pytest.mark.parametrize("name", ["deepseek4-moe", "jamba-dense", "qwen35-dense"])
def test_texts_that_go_on_from_a_kept_state(name: str, model_file: Callable[[str], Path]) -> None:
    """Cut back, copied, begun again or after a failed step, a text's logits are the same bits as computed at once."""
    model = puna.load(model_file(name), backend="cpu", threads=1, n_ctx=512, **CACHES)
    ids = np.random.default_rng(1).integers(0, model.n_vocab, 150).tolist()
    whole, cache = model.logits(ids), model.cache
    first = cache.open()
    np.testing.assert_array_equal(model.step(first, ids), whole[-1])
    with (
        mock.patch.object(model.backend, "run", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        model.step(first, [1, 2, 3])
    second = cache.copy(first)
    np.testing.assert_array_equal(model.step(first, [1]), model.step(second, [1]))
    for sequence in (first, cache.open()):
        kept = cache.truncate(sequence, min(140, len(sequence))) or cache.reuse(sequence, ids).count
        assert kept == 128
        np.testing.assert_array_equal(model.step(sequence, ids[kept:]), whole[-1])
    assert cache.truncate(first, 100) == 0
    np.testing.assert_array_equal(model.step(first, ids[:100]), whole[99])
