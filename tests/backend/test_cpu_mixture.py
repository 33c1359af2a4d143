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


def computed(op: str, out: np.ndarray, *inputs: np.ndarray) -> np.ndarray:
    """By the kernel, over all rows; `out` gives the result's form."""
    operands = [Operand(n, x[0].nbytes, x.shape[1:]) for n, x in enumerate(inputs)]
    target = Guarded(out.nbytes)
    made = RowOp(op, Operand(len(inputs), out[0].nbytes, out.shape[1:]), tuple(operands))
    run(Spec.of(rows, ops=(made,)), [*(x.ctypes.data for x in inputs), target.address], 0, len(out))
    assert target.is_intact
    return target.view(out.dtype.type, *out.shape).copy()


def expected(op: str, out: np.ndarray, *inputs: np.ndarray) -> np.ndarray:
    KERNELS[op](cast(Any, None), cast(Any, SimpleNamespace(attrs={})), out, *inputs)
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


@pytest.mark.parametrize("width", [7, 48])
@pytest.mark.parametrize("used", [1, 3, 8])
def test_weighted_sum(width: int, used: int) -> None:
    """Terms are added in order, each product and sum rounded once."""
    x, w = scores(width, used), np.abs(scores(used))
    want = x[:, 0] * w[:, :1]
    for e in range(1, used):
        want = want + x[:, e] * w[:, e : e + 1]
    np.testing.assert_array_equal(computed("weighted_sum", want, x, w), want)


def test_all_are_here() -> None:
    """Each operation of the table is tried above."""
    assert set(MIXTURE) == {"softmax", "share", "top", "pick", "weighted_sum"}
