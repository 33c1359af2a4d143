"""Architectures with a state: what the reference models do not show, such as what files leave out or get wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_archs import WIDTH, f32, u32, write_arch

from puna.errors import ModelError
from puna.gguf import GGUFFile, Value, ValueType
from puna.graph import Graph
from puna.models.config import ModelConfig
from puna.models.registry import build
from puna.plan import KVLayout

INNER, STATE, RANK, TAPS = 128, 16, 4, 4
ATTENTION = tuple(f"attn_{part}" for part in ("q", "k", "v", "output"))
BLOCK = (*ATTENTION, *(f"ffn_{part}" for part in ("norm", "gate", "up", "down")))
SSM = {
    "ssm.conv_kernel": u32(TAPS),
    "ssm.inner_size": u32(INNER),
    "ssm.state_size": u32(STATE),
    "ssm.time_step_rank": u32(RANK),
}
MAMBA = {
    "ssm_in": (2 * INNER, WIDTH),
    "ssm_conv1d": (INNER, TAPS),
    "ssm_x": (RANK + 2 * STATE, INNER),
    "ssm_dt": (INNER, RANK),
    "ssm_a": (INNER, STATE),
    "ssm_d": (INNER,),
    "ssm_out": (WIDTH, INNER),
}
MAMBA2 = {
    "ssm_in": (2 * INNER + 2 * STATE + RANK, WIDTH),
    "ssm_conv1d": (INNER + 2 * STATE, TAPS),
    "ssm_a": (RANK, 1),
    "ssm_d": (RANK, 1),
    "ssm_norm": (1, INNER),
    "ssm_out": (WIDTH, INNER),
}


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Writes a model and builds its graph."""

    def build_one(architecture: str, **how: Any) -> tuple[Graph, ModelConfig]:
        with GGUFFile.open(write_arch(tmp_path / "m.gguf", architecture, **how)) as file:
            return build(file)

    return build_one


def counts(graph: Graph) -> dict[str, int]:
    names = [node.op for node in graph.nodes]
    return {name: names.count(name) for name in names}


def test_mamba_needs_no_heads(made: Any) -> None:
    """Files of Mamba say that there are no heads and no feed-forward block; each layer has two states, no cache."""
    none = {"attention.head_count": u32(0), "attention.head_count_kv": u32(0), "feed_forward_length": u32(0)}
    graph, _ = made("mamba", keys={**SSM, **none}, drop=BLOCK, each=MAMBA)
    assert counts(graph)["scan"] == counts(graph)["conv"] == 2
    kv = KVLayout.of(graph, 100, "F16", "F16", parallel=2)
    assert kv.widths == {}
    assert kv.states["blk.1.ssm_a"] == (INNER, 1, STATE)
    assert kv.states["blk.1.ssm_conv1d"] == (TAPS - 1, INNER)
    assert kv.nbytes == 2 * kv.slots * 4 * (INNER * STATE + (TAPS - 1) * INNER)


def test_no_heads_at_all_is_refused_elsewhere(made: Any) -> None:
    """An architecture without a state has to have heads."""
    with pytest.raises(ModelError, match=r"attention\.head_count"):
        made("llama", keys={"attention.head_count": u32(0)})


def test_falcon_mamba_norms_without_weights(made: Any) -> None:
    """With the flag, the time step, b and c of each layer are normed."""
    how = {"drop": BLOCK, "each": MAMBA}
    plain, _ = made("mamba", keys=SSM, **how)
    flag = Value(ValueType.BOOL, True)
    normed, _ = made("mamba", keys={**SSM, "ssm.dt_b_c_rms": flag}, **how)
    assert counts(normed)["normalize"] == counts(plain)["normalize"] + 2 * 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("conv_kernel", 1),
        ("conv_kernel", 65),
        ("conv_kernel", None),
        ("state_size", 0),
        ("time_step_rank", 3),
    ],
)
def test_impossible_sizes_are_named(key: str, value: int | None, made: Any) -> None:
    """A size that is missing, out of range, or that does not divide, is an error with its key."""
    keys = {**SSM, f"ssm.{key}": None if value is None else u32(value)}
    with pytest.raises(ModelError, match=rf"ssm\.{key}"):
        made("mamba2", keys=keys, drop=BLOCK, each=MAMBA2)


def test_layers_of_a_hybrid_are_told_by_their_tensors(made: Any) -> None:
    """A layer with the tensors of a state space has a state and no cache, the others the reverse."""
    first = {f"blk.0.{name}.weight": shape for name, shape in MAMBA2.items()} | {"blk.0.ssm_dt.bias": (RANK,)}
    second = {"attn_q": (64, WIDTH), "attn_k": (32, WIDTH), "attn_v": (32, WIDTH), "attn_output": (WIDTH, 64)}
    second = {f"blk.1.{name}.weight": shape for name, shape in second.items()}
    graph, _ = made("granitehybrid", keys=SSM, drop=ATTENTION, extra={**first, **second})
    kv = KVLayout.of(graph, 100, "F16", "F16")
    assert set(kv.widths) == {1}
    assert set(kv.states) == {"blk.0.ssm_a", "blk.0.ssm_conv1d"}


def test_wkv_heads_have_to_divide(made: Any) -> None:
    """RWKV's heads fill the width."""
    with pytest.raises(ModelError, match=r"wkv\.head_size.*does not divide into heads of 48"):
        made("rwkv6", keys={"wkv.head_size": u32(48), "attention.layer_norm_epsilon": f32(1e-5)}, drop=BLOCK)
