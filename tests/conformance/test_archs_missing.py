"""Tensors that blocks do without in some models: llama.cpp refuses files of ../shared/archs that lack these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from arch_files import ARCHS

from puna.errors import ModelError
from puna.gguf import GGUFFile
from puna.models.registry import build

pytestmark = pytest.mark.skipif(not ARCHS.exists(), reason="reference data ../shared/archs is not here")

REFUSED = {
    "bloom-dense": ("token_embd_norm.bias", "blk.1.ffn_up.bias"),
    "falcon-dense": ("output_norm.bias", "blk.1.attn_norm.bias"),
    "gpt-oss-moe": ("output.weight", "blk.1.attn_sinks.weight", "blk.1.ffn_gate_exps.bias"),
    "gpt2-dense": ("blk.1.attn_norm.bias", "blk.1.attn_qkv.bias"),
    "mamba-dense": ("blk.1.ssm_conv1d.bias", "blk.1.ssm_dt.bias"),
    "mamba2-dense": ("blk.1.ssm_norm.weight",),
    "phi2-dense": ("output.bias",),
    "qwen2-dense": ("blk.1.attn_q.bias",),  # which llama.cpp takes: the other layer has one
    "starcoder2-dense": ("blk.1.ffn_norm.bias",),
}
ACCEPTED = {
    "dream-dense": ("output.bias",),
    "llama-dense": ("rope_freqs.weight",),
    "mamba2-dense": ("output.weight",),
    "qwen2-dense": ("blk.0.attn_q.bias", "blk.1.attn_q.bias"),
    "stablelm-dense": ("blk.0.ffn_norm.bias", "blk.1.ffn_norm.bias"),
}


def without(path: Path, names: Sequence[str]) -> None:
    """Builds the graph of a file as if it had no tensors of these names."""
    with GGUFFile.open(path) as file:
        assert set(names) <= set(file.tensors)
        left = {name: info for name, info in file.tensors.items() if name not in names}
        build(cast(GGUFFile, SimpleNamespace(path=path, metadata=file.metadata, tensors=left)))


@pytest.mark.parametrize("name", REFUSED)
def test_missing_tensors_are_named(name: str, model_file: Callable[[str], Path]) -> None:
    """Each is an error of one line that names it."""
    for tensor in REFUSED[name]:
        with pytest.raises(ModelError, match=f"1 tensor missing: '{tensor}'"):
            without(model_file(name), [tensor])


@pytest.mark.parametrize("name", ACCEPTED)
def test_tensors_that_files_may_lack(name: str, model_file: Callable[[str], Path]) -> None:
    """What llama.cpp accepts too is no error."""
    without(model_file(name), ACCEPTED[name])
