"""Random-weight models of ../shared/archs against llama.cpp's logits for the same weights (F32 weights and cache)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from arch_files import ARCHS, check_cpu, check_quantised, check_reference

pytestmark = pytest.mark.skipif(not ARCHS.exists(), reason="reference data ../shared/archs is not here")

# llama.cpp takes GELU from a table of half floats, whose error shows.
TABLE = 1e-6
# Fixture -> largest normalised mean squared error. A new architecture adds its row.
FIXTURES = {
    "arcee-dense": 1e-10,
    "baichuan-dense": 1e-10,
    "bloom-dense": TABLE,
    "chatglm-dense": 1e-10,
    "codeshell-dense": TABLE,
    "cogvlm-dense": 1e-10,
    "cohere2-dense": 1e-10,
    "command-r-dense": 1e-10,
    "deci-dense": 1e-10,
    "ernie4_5-moe": 1e-10,
    "exaone-dense": 1e-10,
    "exaone4-dense": 1e-10,
    "falcon-dense": TABLE,
    "gemma-dense": TABLE,
    "gemma2-dense": TABLE,
    "gemma3-dense": TABLE,
    "glm4-dense": 1e-10,
    "gpt2-dense": TABLE,
    "gptneox-dense": TABLE,
    "granite-dense": 1e-10,
    "granite_swa-dense": 1e-10,
    "hrm_text-dense": 1e-10,
    "hunyuan-dense-dense": 1e-10,
    "hunyuan_vl-dense": 1e-10,
    "internlm2-dense": 1e-10,
    "jais-dense": 1e-10,
    "jais2-dense": 1e-10,
    "llama-dense": 1e-10,
    "llama-moe": 1e-10,
    "maincoder-dense": 1e-10,
    "minicpm-dense": 1e-10,
    "minicpm3-dense": 1e-10,
    "mistral3-dense": 1e-10,
    "mistral3-moe": 1e-10,
    "mpt-dense": TABLE,
    "muse-glimmer-dense": 1e-10,
    "nanbeige-dense": 1e-10,
    "nemotron-dense": 1e-10,
    "olmo-dense": 1e-10,
    "olmo2-dense": 1e-10,
    "openelm-dense": 1e-10,
    "orion-dense": 1e-10,
    "paddleocr-moe": 1e-10,
    "pangu-embedded-dense": 1e-10,
    "phi2-dense": TABLE,
    "phi3-dense": 1e-10,
    "plamo-dense": 1e-10,
    "plamo3-dense": 1e-10,
    "pockettts-dense": TABLE,
    "qwen-dense": 1e-10,
    "qwen2-dense": 1e-10,
    "qwen2vl-dense": 1e-10,
    "qwen3-dense": 1e-10,
    "qwen3tts-dense": 1e-10,
    "qwen3vl-dense": 1e-10,
    "refact-dense": 1e-10,
    "seed_oss-dense": 1e-10,
    "smollm3-dense": 1e-10,
    "spark2_5-dense": TABLE,
    "stablelm-dense": 1e-10,
    "starcoder-dense": TABLE,
    "starcoder2-dense": TABLE,
    "talkie-dense": 1e-10,
    "xverse-dense": 1e-10,
}
# Largest error of the CPU backend with matrices in Q8_0 and activations in 8 bits, where it is not QUANTISED.
QUANTISED = 5e-3
# HRM-Text runs its layers six times over their own results: the rounding of the weights alone makes 9e-3.
ROUGH = {"hrm_text-dense": 2e-2}


@pytest.mark.parametrize("name", FIXTURES)
def test_logits_are_llama_cpps(name: str, model_file: Callable[[str], Path]) -> None:
    """The whole prompt gives llama.cpp's logits; chunks of it, and another sequence beside it, change none."""
    check_reference(model_file(name), name, FIXTURES[name])


ON_CPU = [name for name in FIXTURES if not name.endswith("-moe") or name in {"ernie4_5-moe", "paddleocr-moe"}]


@pytest.mark.parametrize("name", ON_CPU)
def test_logits_on_the_cpu(name: str, model_file: Callable[[str], Path]) -> None:
    """The CPU backend gives llama.cpp's logits too, and the same bits in chunks and beside another sequence."""
    check_cpu(model_file(name), name, FIXTURES[name])


@pytest.mark.parametrize("name", ON_CPU)
def test_logits_of_quantised_weights_on_the_cpu(
    name: str, model_file: Callable[[str], Path], tmp_path: Path
) -> None:
    """With matrices in Q8_0, and activations in 8 bits, the logits stay close to those of F32."""
    check_quantised(model_file(name), name, tmp_path / "q8_0.gguf", ROUGH.get(name, QUANTISED))
