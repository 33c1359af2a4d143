"""What weights are multiplied with, summed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_model import LAYERS, write_tiny

import puna
from puna.engine import Model
from puna.errors import BackendError, ModelError
from puna.gguf import GGUFFile
from puna.graph import Node, make
from puna.measure.imatrix import Collector, collect
from puna.measure.perplexity import losses
from puna.measure.windows import cut, text_ids
from puna.quants import dequantize

TEXT = "The cat and the dog ran to the end of the garden. " * 4
NAMES = ("attn_k", "attn_output", "attn_q", "attn_v", "ffn_down", "ffn_gate", "ffn_up")


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return puna.load(write_tiny(tmp_path / "a.gguf", quant="Q8_0"), backend="reference", n_ctx=64, n_batch=16)


def weight(*shape: int, name: str = "blk.0.w.weight") -> Node:
    return make("weight", tensor=name, dtype="F32", shape=shape)


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def test_squares_are_summed_by_column() -> None:
    """Over all rows of all calls, whatever their shape."""
    collector = Collector()
    a, b = normal(5, 4), normal(2, 3, 4)
    collector(weight(8, 4), a)
    collector(weight(8, 4), b)
    sums, counts = collector.entries()["blk.0.w.weight"]
    wanted = (a**2).sum(axis=0) + (b**2).sum(axis=(0, 1))
    assert sums == pytest.approx(wanted, rel=1e-6)
    assert sums.dtype == counts.dtype == np.float32
    assert counts.tolist() == [11]


@pytest.mark.parametrize("own_rows", [False, True], ids=["one input for all", "an input for each"])
def test_experts_are_summed_each_for_itself(own_rows: bool) -> None:
    """A row counts for the experts that it was given to; one never chosen has nothing."""
    ids = np.array([[0, 2], [2, 3], [0, 3]], np.int32)
    x = normal(3, 2, 4) if own_rows else normal(3, 4)
    collector = Collector()
    collector(weight(5, 8, 4), x, ids)
    sums, counts = collector.entries()["blk.0.w.weight"]
    assert counts.tolist() == [2, 0, 2, 2, 0]
    rows = x if own_rows else np.stack([x, x], axis=1)
    for expert in range(5):
        assert sums[expert] == pytest.approx((rows[ids == expert] ** 2).sum(axis=0), rel=1e-6)


def test_the_layers_are_seen(model: Model) -> None:
    """Every matrix of every layer, all rows of all windows; those that read the same input have the same sums."""
    collector, windows = Collector(), cut(model, text_ids(model, TEXT), 40)
    found = list(collect(model, windows, collector))
    entries = collector.entries()
    assert sorted(entries) == sorted(f"blk.{i}.{name}.weight" for i in range(LAYERS) for name in NAMES)
    assert {float(counts[0]) for _, counts in entries.values()} == {40.0 * len(windows.starts)}
    q, k, down = (entries[f"blk.1.{name}.weight"].sums for name in ("attn_q", "attn_k", "ffn_down"))
    assert np.array_equal(q, k)
    assert (len(q), len(down)) == (64, 128)
    assert np.concatenate(found) == pytest.approx(np.concatenate(list(losses(model, windows))), rel=1e-5)


def test_the_first_layer_sees_the_normed_embedding(model: Model) -> None:
    """The sums of blk.0.attn_q follow from the ids and two tensors of the file."""
    windows = cut(model, text_ids(model, TEXT), 40, chunks=1)
    collector = Collector()
    list(collect(model, windows, collector))
    tensors = {
        name: (model.file.tensors[name].quant) for name in ("token_embd.weight", "blk.0.attn_norm.weight")
    }
    with GGUFFile.open(model.file.path) as file:
        table, norm = (dequantize(quant, file.data(name)) for name, quant in tensors.items())
    x = table[windows.inputs(0)]
    x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * norm
    assert collector.entries()["blk.0.attn_q.weight"].sums == pytest.approx((x**2).sum(axis=0), rel=1e-4)


def test_the_output_is_seen_when_asked_for(model: Model) -> None:
    """Under the name it has in the file, with every row."""
    collector, windows = Collector(output=True), cut(model, text_ids(model, TEXT), 40, chunks=2)
    list(collect(model, windows, collector))
    assert collector.entries()["output.weight"].counts.tolist() == [80]


def test_nobody_watches_afterwards(model: Model) -> None:
    """The observer is gone after the last window, and when it is left early."""
    windows = cut(model, text_ids(model, TEXT), 40)
    collector = Collector()
    running = collect(model, windows, collector)
    next(running)
    running.close()
    seen = collector.counts["blk.0.attn_q.weight"].copy()
    model.logits([1, 2, 3])
    assert np.array_equal(collector.counts["blk.0.attn_q.weight"], seen)


def test_other_backends_are_refused(model: Model) -> None:
    """They do not show what they compute."""
    windows = cut(model, text_ids(model, TEXT), 40)
    model.backend = None  # type: ignore[assignment]
    with pytest.raises(BackendError, match="come from the reference backend"):
        next(collect(model, windows, Collector()))


def test_what_is_no_number_is_an_error() -> None:
    """It names the tensor."""
    collector = Collector()
    collector(weight(8, 4), np.full((1, 4), np.nan, np.float32))
    with pytest.raises(ModelError, match=r"blk\.0\.w\.weight"):
        collector.entries()
