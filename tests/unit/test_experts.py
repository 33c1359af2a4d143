"""How experts are chosen and weighted, against plain NumPy, and what is wrong with a file's mixture."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tiny_model import write_tiny

from puna.backends.reference.kernels import KERNELS
from puna.errors import ModelError
from puna.gguf import GGUFFile, Value, ValueType, write
from puna.graph import Node, Type
from puna.models.experts import Combine, gated, oai, route
from puna.models.mixture import GATINGS, Gating, Mixture
from puna.models.registry import build
from puna.quants import by_name

TOKENS, COUNT = 7, 16
RNG = np.random.default_rng(7)
SCORES = RNG.standard_normal((TOKENS, COUNT)).astype(np.float32) * 2
BIAS = RNG.standard_normal(COUNT).astype(np.float32) * 0.2


def weight(name: str, *shape: int | str) -> Node:
    return Node("weight", (), Type("f32", shape), {"tensor": name})


def values(node: Node, **tensors: np.ndarray) -> np.ndarray:
    """A node's value by the reference backend's kernels, in float64."""
    if node.op == "weight":
        return tensors[cast(str, node.attrs["tensor"])].astype(np.float64)
    inputs = [values(n, **tensors) for n in node.inputs]
    inputs = [
        a.astype(np.int32) if n.type.dtype == "i32" else a for a, n in zip(inputs, node.inputs, strict=True)
    ]
    out = np.empty(node.type.resolve(TOKENS, 0), np.int32 if node.type.dtype == "i32" else np.float64)
    KERNELS[node.op](cast(Any, None), node, out, *inputs)
    return out


def mixture(**changes: Any) -> Mixture:
    facts = {"count": COUNT, "used": 4, "n_ff": (8,), "gating": None, "normed": None, "scale": 1.0}
    facts |= {"groups": 0, "groups_used": 0, "limit": (0.0,), "limit_shared": (0.0,), **changes}
    return Mixture(**facts)


class Bias:
    """Stands for the parameter exp_probs_b."""

    def __init__(self, there: bool) -> None:
        self.there = there

    def __bool__(self) -> bool:
        return False

    def bias(self, count: int) -> Node | None:
        return weight("bias", count) if self.there else None


def routed(m: Mixture, gating: Gating, normed: bool, bias: bool) -> tuple[np.ndarray, np.ndarray]:
    l = SimpleNamespace(config=SimpleNamespace(moe=m), exp_probs_b=Bias(bias))
    ids, weights = route(weight("scores", "T", COUNT), cast(Any, l), gating, normed)
    given = {"scores": SCORES, "bias": BIAS}
    return values(ids, **given), values(weights, **given)


def definition(
    gating: Gating, normed: bool, bias: bool, groups: int, groups_used: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Token by token, expert by expert."""
    ids, weights = np.empty((TOKENS, 4), int), np.empty((TOKENS, 4))
    for t, row in enumerate(SCORES.astype(np.float64)):
        share = {
            "late": row,
            "sigmoid": 1 / (1 + np.exp(-row)),
            "softmax": np.exp(row) / np.exp(row).sum(),
            "sqrt_softplus": np.sqrt(np.log1p(np.exp(row))),
        }[gating]
        choice = share + BIAS if bias else share
        if groups:
            parts = choice.reshape(groups, -1)
            best = np.argsort(-np.sort(parts)[:, -2:].sum(1))[:groups_used]
            choice = np.where(np.isin(np.arange(COUNT) // (COUNT // groups), best), choice, -np.inf)
        ids[t] = np.argsort(-choice)[:4]
        chosen = share[ids[t]]
        chosen = np.exp(chosen) / np.exp(chosen).sum() if gating == "late" else chosen
        weights[t] = chosen / (chosen.sum() if normed else 1) * scale
    return ids, weights


@pytest.mark.parametrize("gating", GATINGS.values())
def test_routes(gating: Gating) -> None:
    """Each gating function with and without bias, groups, a sum of 1 and a factor."""
    for bias, normed, (groups, used), scale in product(
        (False, True), (False, True), ((0, 0), (4, 2), (2, 1)), (1.0, 2.5)
    ):
        m = mixture(groups=groups, groups_used=used, scale=scale)
        ids, weights = routed(m, gating, normed, bias)
        want = definition(gating, normed, bias, groups, used, scale)
        np.testing.assert_array_equal(ids, want[0])
        np.testing.assert_allclose(weights, want[1], rtol=1e-6)


def test_the_file_tells_how() -> None:
    """What a file says of gating and sums counts, not what the architecture takes otherwise."""
    told = routed(mixture(gating="sigmoid", normed=True), "softmax", normed=False, bias=False)
    np.testing.assert_array_equal(told, routed(mixture(), "sigmoid", normed=True, bias=False))


def test_scores_that_a_gate_no_longer_tells_apart() -> None:
    """The larger score is chosen, though its sigmoid is 1 as well."""
    l = SimpleNamespace(config=SimpleNamespace(moe=mixture(used=1)), exp_probs_b=Bias(False))
    ids, _ = route(weight("scores", "T", COUNT), cast(Any, l), "sigmoid", normed=False)
    scores = np.full((TOKENS, COUNT), 50.0)
    scores[:, 9] = 60.0
    assert (values(ids, scores=scores) == 9).all()


def combined(combine: Combine, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    node = combine(weight("gate", "T", COUNT), weight("up", "T", COUNT))
    return values(node, gate=gate, up=up)


def test_limits_of_inner_values() -> None:
    """A gate is limited from above before its activation, the other factor on both sides."""
    gate, up = SCORES.astype(np.float64) * 9, np.roll(SCORES, 3).astype(np.float64) * 9
    low = np.minimum(gate, 2.0)
    want = low / (1 + np.exp(-low)) * np.clip(up, -2.0, 2.0)
    np.testing.assert_allclose(combined(gated("silu", 2.0), gate, up), want, rtol=1e-6)
    low = np.minimum(gate, 7.0)
    want = low / (1 + np.exp(-1.702 * low)) * (np.clip(up, -7.0, 7.0) + 1)
    np.testing.assert_allclose(combined(oai, gate, up), want, rtol=1e-6)


def u32(value: int) -> Value:
    return Value(ValueType.UINT32, value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_used_count": u32(0)}, "expert_used_count': cannot use 0 of 8 experts"),
        ({"expert_used_count": u32(9)}, "expert_used_count': cannot use 9 of 8 experts"),
        ({"expert_gating_func": u32(9)}, "expert_gating_func': no gating function has the number 9"),
        ({"expert_group_count": u32(3)}, "cannot choose 2 of 8 experts from 0 of 3 groups"),
        (
            {"expert_group_count": u32(8), "expert_group_used_count": u32(1)},
            "cannot choose 2 of 8 experts from 1 of 8",
        ),
        (
            {"expert_weights_scale": Value(ValueType.FLOAT32, -1.0)},
            "expert_weights_scale': -1.0 is out of range",
        ),
        ({"swiglu_clamp_exp": Value(ValueType.FLOAT32, [1.0])}, "swiglu_clamp_exp': needs 2 numbers"),
    ],
)
def test_impossible_mixtures_are_named(changes: dict[str, Value], message: str, tmp_path: Path) -> None:
    """A key that does not fit the others is a one-line error."""
    keys = {"expert_count": u32(8), "expert_used_count": u32(2), **changes}
    path = write_tiny(tmp_path / "m.gguf", metadata={f"llama.{key}": value for key, value in keys.items()})
    with GGUFFile.open(path) as file, pytest.raises(ModelError, match=message) as caught:
        build(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("drop", ["ffn_gate_inp.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"])
def test_missing_tensors_are_named(drop: str, tmp_path: Path) -> None:
    """A mixture without one of its tensors is refused by that tensor's name."""
    path = write_mixture(tmp_path / "m.gguf", drop)
    with GGUFFile.open(path) as file, pytest.raises(ModelError, match=rf"1 tensor missing: 'blk\.0\.{drop}'"):
        build(file)


def write_mixture(path: Path, drop: str = "", told: int = 4) -> Path:
    """The tiny model with four experts in its first layer. told: how many the file says there are."""
    keys = {"llama.expert_count": u32(told), "llama.expert_used_count": u32(2)}
    with GGUFFile.open(write_tiny(path.with_name("dense.gguf"), metadata=keys)) as file:
        tensors = [(t.name, t.quant, t.shape, file.data(t.name)) for t in file.tensors.values()]
        width, inner = (file.metadata.integer(f"llama.{key}_length") for key in ("embedding", "feed_forward"))
        shapes = {
            "ffn_gate_inp": (4, width),
            "ffn_gate_exps": (4, inner, width),
            "ffn_up_exps": (4, inner, width),
        }
        shapes["ffn_down_exps"] = (4, width, inner)
        kept = [
            t for t in tensors if not t[0].startswith(("blk.0.ffn_gate", "blk.0.ffn_up", "blk.0.ffn_down"))
        ]
        floats = by_name("F32")
        kept += [
            (f"blk.0.{name}.weight", floats, shape, np.ones((*shape[:-1], shape[-1] * 4), np.uint8))
            for name, shape in shapes.items()
            if f"{name}.weight" != drop
        ]
        write(path, file.metadata, kept)
    return path


def test_experts_of_another_number(tmp_path: Path) -> None:
    """Tensors of more or fewer experts than the key tells are refused, so no router chooses what is not there."""
    path, shapes = write_mixture(tmp_path / "m.gguf", told=5), r"has shape \[4, \d+\].* \[5, \d+\]"
    message = rf"'blk\.0\.ffn_gate_inp\.weight' {shapes}"
    with GGUFFile.open(path) as file, pytest.raises(ModelError, match=message):
        build(file)
