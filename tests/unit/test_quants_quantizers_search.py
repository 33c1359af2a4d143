"""The search for scales against the best that there is, on groups small enough to try everything."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from puna.quants.iq import IQ4_NL
from puna.quants.quantizers.search import Affine, Groups, Levels, Model, Scaled, Table, search

Floats = np.ndarray[Any, np.dtype[np.float32]]
MODELS: list[tuple[Model, list[float]]] = [
    (Scaled(Levels(-1, 1), (1, 2, 4, 8)), [-1, 0, 1]),
    (Scaled(Table((0, 3, 4, 6), 4), (-4, -3, 2, 3)), [-4, -1, 0, 2]),
    (Affine(2, signed=True), [0, 1, 2]),
    (Affine(2, signed=False), [0, 1, 2]),
]


@pytest.fixture(autouse=True)
def without_warnings() -> Iterator[None]:
    """As `quantize` calls the search."""
    with np.errstate(all="ignore"):
        yield


def groups(weighted: bool) -> Groups:
    random = np.random.default_rng(5)
    x = random.standard_normal((6, 64), np.float32)
    return Groups(x, random.random((6, 64), np.float32) + np.float32(0.1) if weighted else None)


def errors(held: Groups, codes: Floats, scale: Floats, offset: Floats) -> Floats:
    squares = (held.x - scale * codes - offset) ** 2
    return np.add.reduce(squares if held.w is None else squares * held.w)


def least(held: Groups, model: Model, levels: list[float]) -> Floats:
    """The least error of each group over all codes."""
    found = []
    for codes in product(levels, repeat=len(held.x)):
        held.codes[:] = np.array(codes, np.float32)[:, None]
        scale, offset, _gain = model.solve(held, held.sums())
        found.append(errors(held, held.codes, scale, offset))
    return np.min(found, axis=0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("model", "levels"), MODELS, ids=["levels", "table", "signed", "unsigned"])
def test_near_the_best(model: Model, levels: list[float], weighted: bool) -> None:
    """Over many groups the error is at most a twentieth above the least that any codes allow, never below."""
    held = groups(weighted)
    scale, offset, _sums = search(held, model)
    model.encode(held, scale, offset)
    found = errors(held, held.codes, scale, offset)
    best = least(held, model, levels)
    assert (found >= best * (1 - 1e-3) - 1e-6).all()
    assert found.sum() <= 1.05 * best.sum()


def test_table_finds_the_nearest() -> None:
    """A table's level is the nearest for any number, and its place is where the table has it."""
    table, t = Table(IQ4_NL.table, IQ4_NL.zero), np.linspace(-140, 140, 5001, dtype=np.float32)
    entries = np.array(IQ4_NL.table, np.float32) - IQ4_NL.zero
    nearest = t.copy()
    table.nearest(nearest)
    distances = np.abs(entries[:, None] - t)
    assert np.array_equal(np.abs(nearest - t), distances.min(axis=0))
    assert np.array_equal(entries[table.places(nearest)], nearest)


def test_equal_values() -> None:
    """A group of equal values costs nothing where its offset may have that sign, whatever the weights."""
    x = np.array([[2.5, -2.5, 0]], np.float32).repeat(8, axis=0)
    for weights in (None, np.linspace(0.1, 2, 24, dtype=np.float32).reshape(8, 3)):
        for model in (Affine(15, signed=True), Affine(15, signed=False)):
            held = Groups(x, weights)
            scale, offset, _sums = search(held, model)
            model.encode(held, scale, offset)
            assert errors(held, held.codes, scale, offset) == pytest.approx(0, abs=1e-9)
            assert model.signed or (offset <= 0).all()
