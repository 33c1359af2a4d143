"""Row operations of mixtures of experts against the reference backend's kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from test_cpu_rig import Guarded, run

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.mixture import MIXTURE
from puna.backends.cpu.kernels.rows import Operand, RowOp, rows
from puna.backends.reference.kernels import KERNELS

COUNT = 6  # rows of a step
WIDTHS = [1, 2, 8, 17, 32, 60, 128, 512]


def computed(op: str, out: np.ndarray, *inputs: np.ndarray, **attrs: Any) -> np.ndarray:
    """By the kernel, over all rows; `out` gives the result's form. An input without rows is a weight."""
    operands = [
        Operand(n, x[0].nbytes, x.shape[1:]) if len(x) == COUNT else Operand(n, 0, x.shape)
        for n, x in enumerate(inputs)
    ]
    target = Guarded(out.nbytes)
    place = Operand(len(inputs), out[0].nbytes, out.shape[1:])
    made = RowOp(op, place, tuple(operands), tuple(attrs.items()))
    run(Spec.of(rows, ops=(made,)), [*(x.ctypes.data for x in inputs), target.address], 0, len(out))
    assert target.is_intact
    return target.view(out.dtype.type, *out.shape).copy()


def expected(op: str, out: np.ndarray, *inputs: np.ndarray, **attrs: Any) -> np.ndarray:
    KERNELS[op](cast(Any, None), cast(Any, SimpleNamespace(attrs=attrs)), out, *inputs)
    return out


def scores(width: int, *more: int) -> np.ndarray:
    values = np.random.default_rng(width).standard_normal((COUNT, *more, width)) * 3
    return np.asarray(values, np.float32)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op", ["softmax", "share"])
def test_shares(op: str, width: int) -> None:
    """Softmax and share in float64, but for a few roundings, over the last dimension of a row."""
    for x in (scores(width), scores(width, 3)):
        x = np.exp(x) if op == "share" else x
        want = expected(op, np.empty(x.shape), x.astype(np.float64))
        np.testing.assert_allclose(computed(op, x, x), want, rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("width", WIDTHS)
def test_top(width: int) -> None:
    """The largest in descending order, the first of equals; zeros of both signs are equals."""
    plain = scores(width)
    ties, zeros = np.round(plain), np.where(plain > 0, np.float32(0), np.float32(-0.0))
    for x in (plain, ties, zeros, np.full_like(plain, -np.inf)):
        for used in {1, min(2, width), min(8, width), width}:
            out = np.empty((COUNT, used), np.int32)
            np.testing.assert_array_equal(computed("top", out, x), expected("top", out.copy(), x))


def test_top_of_what_is_not_a_number() -> None:
    """NaN is never chosen before a number, and every place is one of the row's."""
    x = scores(32)
    x[:, ::2] = np.nan
    found = computed("top", np.empty((COUNT, 20), np.int32), x)
    assert (found[:, :16] % 2 == 1).all()
    assert ((found >= 0) & (found < 32)).all()


@pytest.mark.parametrize("width", [5, 64])
def test_pick(width: int) -> None:
    """The values at the chosen places, in their order."""
    x = scores(width)
    ids = np.random.default_rng(1).integers(0, width, (COUNT, 4)).astype(np.int32)
    out = np.empty(ids.shape, np.float32)
    np.testing.assert_array_equal(computed("pick", out, x, ids), np.take_along_axis(x, ids, axis=-1))


def test_group_of() -> None:
    """The group of each chosen expert."""
    ids = np.random.default_rng(3).integers(0, 60, (COUNT, 7)).astype(np.int32)
    np.testing.assert_array_equal(computed("group_of", ids, ids, size=4), ids // 4)


def test_whole() -> None:
    """Whole numbers as ids."""
    ids = np.random.default_rng(3).integers(0, 2**24, (COUNT, 7)).astype(np.int32)
    np.testing.assert_array_equal(computed("whole", ids, ids.astype(np.float32)), ids)


@pytest.mark.parametrize("width", [7, 48])
@pytest.mark.parametrize("used", [1, 3, 8])
def test_weighted_sum(width: int, used: int) -> None:
    """Terms are added in order, each product and sum rounded once."""
    x, w = scores(width, used), np.abs(scores(used))
    want = x[:, 0] * w[:, :1]
    for e in range(1, used):
        want = want + x[:, e] * w[:, e : e + 1]
    np.testing.assert_array_equal(computed("weighted_sum", want, x, w), want)


@pytest.mark.parametrize(("used", "rows"), [(1, 4), (4, 1), (3, 5)])
def test_several_weighted_sums(used: int, rows: int) -> None:
    """A row of weights for each sum."""
    x, w = scores(20, used), scores(used, rows)
    want = np.empty((COUNT, rows, 20), np.float32)
    for m in range(rows):
        want[:, m] = x[:, 0] * w[:, m, :1]
        for e in range(1, used):
            want[:, m] = want[:, m] + x[:, e] * w[:, m, e : e + 1]
    np.testing.assert_array_equal(computed("weighted_sum", want, x, w), want)


@pytest.mark.parametrize("used", [1, 5])
def test_sum_without_weights(used: int) -> None:
    """Terms are added in order."""
    x = scores(48, used)
    want = x[:, 0]
    for e in range(1, used):
        want = want + x[:, e]
    np.testing.assert_array_equal(computed("weighted_sum", want, x), want)


def test_share_of_next_to_nothing() -> None:
    """A sum below 2**-14 counts as that much, so nothing is divided by zero."""
    x = np.zeros((COUNT, 8), np.float32)
    x[1:] = 1e-9
    got = computed("share", x, x)
    np.testing.assert_array_equal(got, x * np.float32(2**14))


@pytest.mark.parametrize(("groups", "size"), [(1, 8), (2, 4), (8, 32), (8, 4), (16, 1), (4, 3)])
def test_best_groups(groups: int, size: int) -> None:
    """The values of the best groups, and -inf elsewhere; of equal groups the first is better."""
    plain = scores(groups * size)
    for x in (plain, np.round(plain), np.zeros_like(plain)):
        for used in {1, max(1, groups // 2), groups}:
            attrs = {"groups": groups, "used": used}
            want = expected("best_groups", np.empty_like(x), x, **attrs)
            assert (np.isfinite(want).sum(axis=-1) == used * size).all()
            np.testing.assert_array_equal(computed("best_groups", want, x, **attrs), want)


def test_best_groups_by_their_two_largest() -> None:
    """Two good experts are better than one that is a little better than each."""
    x = np.zeros((COUNT, 8), np.float32)
    x[:, [1, 4, 6]] = 1.0, 0.75, 0.5
    got = computed("best_groups", x, x, groups=2, used=1)
    np.testing.assert_array_equal(got[:, :4], -np.inf)
    np.testing.assert_array_equal(got[:, 4:], x[:, 4:])


@pytest.mark.parametrize("width", [5, 64])
def test_add_experts(width: int) -> None:
    """Each chosen expert's bias, added to what it gave."""
    x, biases = scores(width, 3), np.random.default_rng(2).standard_normal((9, width)).astype(np.float32)
    ids = np.random.default_rng(1).integers(0, 9, (COUNT, 3)).astype(np.int32)
    np.testing.assert_array_equal(computed("add_experts", x, x, biases, ids), x + biases[ids])


@pytest.mark.parametrize("width", WIDTHS)
def test_sum(width: int) -> None:
    """Sums over the last dimension, but for the order."""
    for x in (scores(width), scores(width, 3)):
        out = np.empty((*x.shape[:-1], 1), np.float32)
        want = x.astype(np.float64).sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(computed("sum", out, x), want, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 4, 5])
@pytest.mark.parametrize("rounds", [1, 2, 20])
def test_sinkhorn(size: int, rounds: int) -> None:
    """The reference's weights in float64."""
    x = scores(size, size)
    attrs = {"rounds": rounds, "eps": 1e-6}
    want = expected("sinkhorn", np.empty(x.shape), x.astype(np.float64), **attrs)
    got = computed("sinkhorn", x, x, **attrs)
    np.testing.assert_allclose(got, want, rtol=2e-5)


def test_all_are_here() -> None:
    """Each operation of the table is tried above."""
    tried = {"add_experts", "best_groups", "group_of", "pick", "share", "sinkhorn"}
    tried |= {"softmax", "sum", "top", "weighted_sum", "whole"}
    assert set(MIXTURE) == tried
