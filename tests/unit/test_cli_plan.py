"""`puna plan`: the four regions to the byte, and the context that fits."""

from __future__ import annotations

import dataclasses
import itertools
import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from cli_runs import puna
from tiny_model import write_tiny

import puna as engine
from puna import planning
from puna.backends.cpu.kernels.shapes import parts_bytes
from puna.backends.reference import backend as reference
from puna.cli.plan import cache_lines
from puna.errors import BackendError
from puna.gguf import GGUFFile, Value, ValueType
from puna.plan import PAGE, KVLayout
from puna.units import human


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(reference, "free_memory", lambda: count)


def enough(count: int) -> int:
    """Free bytes of which so many can be taken, with the reserve left."""
    return next(n for n in range(count, 2 * count, 16) if n - planning.reserve(n) >= count)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The first layer looks back to a window, the second to all."""
    pattern = {"gemma3.attention.sliding_window_pattern": Value(ValueType.UINT32, 2)}
    return write_tiny(tmp_path / "m.gguf", architecture="gemma3", vocab="spm", n_ctx=4096, metadata=pattern)


def test_the_plan_is_what_a_model_takes(model: Path) -> None:
    """The regions of --json are those of the loaded model, for each of its options."""
    for words, options in (
        ([], {}),
        (["-c", "300", "-b", "32"], {"n_ctx": 300, "n_batch": 32}),
        (
            ["-ctk", "q8_0", "-ctv", "q4_0", "-np", "1"],
            {"cache_type_k": "q8_0", "cache_type_v": "q4_0", "parallel": 1},
        ),
    ):
        result = puna("plan", model, "--json", "--backend", "blas", *words)
        found = json.loads(result.out)
        loaded = engine.load(model, backend="blas", **options)
        assert found["memory"] == loaded.memory
        assert found["total"] == sum(loaded.memory.values())
        assert found["n_ctx"] == loaded.n_ctx
        assert result.status == 0


def test_lines_for_people(model: Path) -> None:
    """Bytes with their sum, what the KV cache is made of, and the longest context that fits."""
    out = puna("plan", model, "--backend", "blas", "-c", 1000).out
    for text in (
        "compute buffer",
        "KV cache",
        "scratch",
        "total",
        "keys in f32",
        "for a window of",
        "free memory",
    ):
        assert text in out
    assert "all of the 4096 positions that it was trained on would fit" in out


def test_what_does_not_fit(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status says so, the longest context that fits is named, and loading is refused with it."""
    with GGUFFile.open(model) as file:
        prepared = planning.prepare(file, backend="blas", n_ctx=1000)
    free(monkeypatch, enough(prepared.total))
    result = puna("plan", model, "--backend", "blas", "-c", 4096)
    assert result.status == 1
    fitting = json.loads(puna("plan", model, "--backend", "blas", "-c", 4096, "--json").out)[
        "longest_context"
    ]
    assert 960 <= fitting <= 1024
    assert f"the longest context that fits: {fitting} of the 4096" in result.out
    assert "\n  does not fit: " in result.out
    assert "exceeds" not in result.out
    long = puna("plan", model, "--backend", "blas", "-c", 999_999_999).out
    assert "  the context of 999999999 exceeds the 4096 that it was trained on\n" in long
    with pytest.raises(BackendError, match=rf"are free; lower the context \(-c\) to {fitting} at most"):
        engine.load(model, backend="blas", n_ctx=4096)
    for options in ({"n_ctx": 0}, {"n_ctx": 4096, "fit": True}):
        loaded = engine.load(model, backend="blas", **options)
        assert loaded.n_ctx == fitting
        assert any(f"the context is {fitting}, not 4096" in note for note in loaded.notes)
    free(monkeypatch, 1000)
    for options in ({"n_ctx": 0}, {"n_ctx": 4096, "fit": True}, {"n_ctx": 4096}):
        with pytest.raises(
            BackendError, match=r"no context fits: 64 positions need .* take a smaller model$"
        ):
            engine.load(model, backend="blas", **options)
    assert "\n  no context fits\n" in puna("plan", model, "--backend", "blas").out


def test_the_longest_that_fits_is_found_in_a_few_plans(model: Path) -> None:
    """Guesses that go by how memory grows find the same as looking at each context would."""
    with GGUFFile.open(model) as file:
        prepared = planning.prepare(file, backend="blas", n_ctx=4096)
    plans = {pages * PAGE: prepared.at(pages * PAGE) for pages in range(1, 65)}
    for n_ctx in (64, 128, 1024, 2048, 3072):
        about, asked = dataclasses.replace(prepared.about, free=enough(plans[n_ctx].total)), []

        def at(n: int, about: Any = about, asked: Any = asked) -> planning.Prepared:
            asked.append(n)
            return dataclasses.replace(plans[n], about=about)

        assert dataclasses.replace(prepared, about=about, at=at).longest(4096) == n_ctx
        assert len(asked) <= 7


def test_a_window_needs_fewer_pages(model: Path) -> None:
    """Layers with a window keep pages for it and for a step, whatever the context."""
    groups = {
        context: json.loads(puna("plan", model, "--backend", "blas", "--json", "-c", context).out)["kv"][
            "groups"
        ]
        for context in (2048, 4096)
    }
    for whole, windowed in groups.values():
        assert (whole["window"], windowed["window"] > 0) == (0, True)
    assert groups[2048][0]["pages"] * 2 == groups[4096][0]["pages"]
    assert groups[2048][1]["pages"] == groups[4096][1]["pages"]


def test_a_shorter_context_keeps_the_other_options(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is made again for what fits is for the same pooling, types and batch."""
    how = {"backend": "blas", "pooling": "mean", "cache_type_k": "f16", "n_batch": 64}
    with GGUFFile.open(model) as file:
        free(monkeypatch, enough(planning.prepare(file, n_ctx=1000, **how).total))
        fitting = planning.prepare(file, n_ctx=4096, fit=True, **how)
    assert fitting.n_ctx < 4096
    assert (fitting.config.pooling, fitting.steps.kv.k_type, fitting.steps.tokens) == ("mean", "F16", 64)


@pytest.mark.parametrize("options", [{"n_ctx": 0}, {"n_ctx": 4096, "fit": True}])
def test_what_fits_is_loaded_while_others_take_memory(
    model: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The context is made to fit one reading of the free memory, less a reserve, and is not held against another."""
    with GGUFFile.open(model) as file:
        room = enough(planning.prepare(file, backend="blas", n_ctx=1000).total)
    readings = itertools.count(room, -room // 100)
    monkeypatch.setattr(reference, "free_memory", lambda: next(readings))
    loaded = engine.load(model, backend="blas", **options)
    assert 960 <= loaded.n_ctx <= 1024
    assert sum(loaded.memory.values()) <= room - planning.reserve(room)
    assert any("stay free" in note for note in loaded.notes)


def test_the_reserve_is_a_sixteenth_of_what_is_free_and_1_gib_at_most() -> None:
    """As the option's help says."""
    assert [planning.reserve(n << 30) for n in (0, 8, 16, 64)] == [0, 1 << 29, 1 << 30, 1 << 30]


def test_states_are_shown(tmp_path: Path) -> None:
    """What the KV cache takes is what its lines say: so many slots of so many bytes, and pages."""
    path = write_tiny(tmp_path / "s.gguf", architecture="lfm2")
    for parallel in (1, 16):
        words = ("plan", path, "--backend", "blas", "-np", parallel)
        found = json.loads(puna(*words, "--json").out)
        kv = found["kv"]
        slots, size = kv["slots"], kv["slot_bytes"]
        assert size == 4 * sum(map(prod, kv["states"].values())) > 0
        assert slots * size + sum(kv["layer_bytes"].values()) == found["memory"]["kv"]
        out = puna(*words).out
        assert f"  its states, {len(kv['states'])} of {human(size)} together, in {slots} slots: " in out
        assert f"  of the slots {slots - 1} are for the sequences" in out


def test_without_attention_a_longer_context_takes_no_more(tmp_path: Path) -> None:
    """A model whose layers all have states takes the same for any context as long as a step, and says why."""
    taken = []
    for context in (512, 4096):
        layout = KVLayout({}, "F16", "F16", (), context, states={"s": (2, 3)}, slots=4)
        assert parts_bytes(layout, 2) == 0
        taken.append(layout.nbytes)
        assert "no layer attends" in next(cache_lines(layout, context))
    assert taken == [4 * 6 * 4] * 2
