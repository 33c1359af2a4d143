"""Random-weight mixtures of experts of ../shared/archs against llama.cpp's logits (F32 weights and cache)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from arch_files import ARCHS, CACHES, Reference, check_cpu, check_reference, median_error, quantised

import puna

pytestmark = pytest.mark.skipif(not ARCHS.exists(), reason="reference data ../shared/archs is not here")

EXACT = (
    "afmoe-moe",
    "arctic-moe",
    "bailingmoe-moe",
    "bailingmoe2-moe",
    "cohere2moe-moe",
    "dbrx-moe",
    "deepseek-moe",
    "deepseek2-moe",
    "deepseek32-moe",
    "dots1-moe",
    "dots3note-moe",
    "ernie4_5-moe-moe",
    "exaone-moe-moe",
    "glm-dsa-moe",
    "glm4moe-moe",
    "gpt-oss-moe",
    "granite-moe",
    "granitemoe-dense",
    "granitemoe-moe",
    "grovemoe-moe",
    "hunyuan-moe-moe",
    "hy_v3-moe",
    "hy_v4-moe",
    "laguna-moe",
    "llama4-moe",
    "maple-moe",
    "mellum-moe",
    "mimo2-moe",
    "minicpm-moe",
    "minimax-m2-moe",
    "minimax-m3-moe",
    "mistral4-moe",
    "olmoe-moe",
    "phimoe-moe",
    "qwen2moe-moe",
    "qwen3moe-moe",
    "qwen3vlmoe-moe",
    "smallthinker-moe",
)
# Fixture -> largest normalised mean squared error. In grok's, llama.cpp takes GELU from a table of half floats.
FIXTURES = {**dict.fromkeys(EXACT, 1e-10), "grok-moe": 1e-6}


# Largest error of the CPU backend with matrices in Q8_0 and activations in 8 bits.
QUANTISED = 5e-3


@pytest.mark.parametrize("name", FIXTURES)
def test_logits_are_llama_cpps(name: str, model_file: Callable[[str], Path]) -> None:
    """The whole prompt gives llama.cpp's logits; chunks of it, and another sequence beside it, change none."""
    check_reference(model_file(name), name, FIXTURES[name])


@pytest.mark.parametrize("name", FIXTURES)
def test_logits_on_the_cpu(name: str, model_file: Callable[[str], Path]) -> None:
    """The CPU backend gives them too, the same bits in chunks and beside another sequence."""
    check_cpu(model_file(name), name, FIXTURES[name])


@pytest.mark.parametrize("name", FIXTURES)
def test_logits_of_quantised_weights(name: str, model_file: Callable[[str], Path], tmp_path: Path) -> None:
    """With matrices in Q8_0, most tokens' logits are close to the reference's; of others rounding tips the choice."""
    tokens, path = Reference(name).tokens, quantised(model_file(name), tmp_path / "q8_0.gguf")
    want = puna.load(path, backend="reference", n_ctx=96, threads=1).logits(tokens)
    got = puna.load(path, backend="cpu", n_ctx=96, threads=1, **CACHES).logits(tokens)
    assert 0 < median_error(got, want) <= QUANTISED
