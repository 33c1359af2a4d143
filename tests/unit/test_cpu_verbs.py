"""Verbs of the kernel language: rounding, exp, tanh, sums, half floats, against NumPy, for each kind of processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_kernels import CPUS, apply, run, target

from puna.backends.cpu import verbs
from puna.backends.cpu.lang import Kernel, Value

F32 = np.float32


def floats(*, low: float, high: float, count: int = 1 << 15, edges: tuple[float, ...] = ()) -> np.ndarray:
    """Random f32 in an interval, evenly spread, then some close to zero, with `edges` and its ends among them."""
    rng = np.random.default_rng(5)
    values = rng.uniform(low, high, count)
    values[: count // 4] = np.clip(rng.standard_normal(count // 4) * 1e-3, low, high)
    ends = (*edges, low, high)
    values[: len(ends)] = ends
    return np.clip(values.astype(F32), F32(low), F32(high))


def units_apart(got: np.ndarray, want: np.ndarray) -> float:
    """The largest error in units of the last place of float64 numbers as f32."""
    spacing = np.spacing(np.abs(want).astype(F32)).astype(np.float64)
    return float(np.max(np.abs(got.astype(np.float64) - want) / spacing))


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("cpu", CPUS)
def test_exp(cpu: str | None, lanes: int) -> None:
    """exp is within 2 units of the last place of float64's, on as many lanes as one likes, with the same bits."""
    x = floats(low=-87.33, high=88.37, edges=(0.0, -0.0, 1e-30, -1e-45, 0.3466, -0.3466))
    got = apply(verbs.exp, x, to=F32, lanes=lanes, cpu=cpu)
    assert units_apart(got, np.exp(x.astype(np.float64))) < 2
    assert got[0] == got[1] == 1
    np.testing.assert_array_equal(got, apply(verbs.exp, x, to=F32, cpu=cpu))


@pytest.mark.parametrize("cpu", CPUS)
def test_exp_at_the_ends(cpu: str | None) -> None:
    """Below -87.34 exp is 0, above 88.376 it stays at 2.4e38 and never becomes infinite; NaN stays NaN."""
    x = np.zeros(16, F32)
    x[:12] = -87.34, -100, -1e30, -np.inf, 88.376, 88.377, 88.8, 1e30, np.inf, np.nan, -np.nan, -87.3365
    got = apply(verbs.exp, x, to=F32, cpu=cpu)
    assert (got[:4] == 0).all()
    np.testing.assert_allclose(got[4:9], 2.4e38, rtol=1e-2)
    assert np.isnan(got[9:11]).all()
    assert got[11] == pytest.approx(1.1755e-38, rel=1e-4)


@pytest.mark.parametrize("cpu", CPUS)
def test_exp_rises(cpu: str | None) -> None:
    """A larger x never has an exp smaller by more than rounding: no jump where the power of two changes."""
    x = np.linspace(-87.3, 88.3, 1 << 16).astype(F32)
    got = apply(verbs.exp, x, to=F32, cpu=cpu)
    assert (np.diff(got) >= 0).all()


@pytest.mark.parametrize("cpu", CPUS)
def test_tanh(cpu: str | None) -> None:
    """tanh is within 2e-7 of float64's, exactly -1 and 1 far out, and NaN for NaN."""
    x = floats(low=-12, high=12, edges=(0.0, 1e-8, 0.5))
    got = apply(verbs.tanh, x, to=F32, cpu=cpu)
    np.testing.assert_allclose(got, np.tanh(x.astype(np.float64)), rtol=0, atol=2e-7)
    assert got[0] == 0
    far = np.resize(np.array([-np.inf, -1e30, -50, 50, 1e30, np.inf, np.nan], F32), 16)
    got = apply(verbs.tanh, far, to=F32, cpu=cpu)
    assert got[:6].tolist() == [-1, -1, -1, 1, 1, 1]
    assert np.isnan(got[6])


@pytest.mark.parametrize("cpu", CPUS)
def test_round_even(cpu: str | None) -> None:
    """Halves go to the even side; exact up to 2**22."""
    halves = np.arange(-2048, 2048, dtype=F32) / 2
    wide = floats(low=-(2.0**22), high=2.0**22)
    for x in (halves, wide, np.nextafter(halves, F32(9e9)), np.nextafter(halves, F32(-9e9))):
        np.testing.assert_array_equal(apply(verbs.round_even, x, to=F32, cpu=cpu), np.rint(x))


@pytest.mark.parametrize("cpu", CPUS)
def test_reciprocal_root(cpu: str | None) -> None:
    """1 / sqrt(x), each of the two operations rounded correctly."""
    x = floats(low=1e-30, high=1e6)
    got = apply(verbs.reciprocal_root, x, to=F32, cpu=cpu)
    np.testing.assert_array_equal(got, F32(1) / np.sqrt(x))


@pytest.mark.parametrize("cpu", CPUS)
def test_fma_rounds_once_or_twice(cpu: str | None) -> None:
    """a * b + c has one rounding where the processor fuses, two where it does not, and nothing in between."""
    rng = np.random.default_rng(6)
    a, b, c = (rng.standard_normal(4096).astype(F32) for _ in range(3))
    c[:2048] = (-a * b)[:2048]  # what is left is the product's own rounding error
    got = apply(verbs.fma, a, b, c, to=F32, cpu=cpu)
    once = (a.astype(np.float64) * b + c).astype(F32)
    np.testing.assert_array_equal(got, once if target(cpu).fused else a * b + c)


def test_larger_and_smaller() -> None:
    """`maximum` and `minimum` are NumPy's on numbers, and give the second where either is NaN."""
    a, b = floats(low=-9, high=9), floats(low=-9, high=9)[::-1].copy()
    np.testing.assert_array_equal(apply(verbs.maximum, a, b, to=F32), np.maximum(a, b))
    np.testing.assert_array_equal(apply(verbs.minimum, a, b, to=F32), np.minimum(a, b))
    nan, one = np.full(16, np.nan, F32), np.ones(16, F32)
    for verb in (verbs.maximum, verbs.minimum):
        assert (apply(verb, nan, one, to=F32) == 1).all()
        assert np.isnan(apply(verb, one, nan, to=F32)).all()


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", [2, 4, 16])
def test_sums_fold_in_halves(lanes: int, cpu: str | None) -> None:
    """`sum_lanes` adds the upper half to the lower until one is left, in that order; `max_lanes` is the largest."""
    x = floats(low=-100, high=100, count=1024)
    want = x.reshape(-1, lanes).copy()
    while want.shape[1] > 1:
        half = want.shape[1] // 2
        want = want[:, :half] + want[:, half:]
    want = np.repeat(want, lanes)
    got = apply(lambda v: verbs.sum_lanes(v).splat(lanes), x, to=F32, lanes=lanes, cpu=cpu)
    np.testing.assert_array_equal(got, want)
    got = apply(lambda v: verbs.max_lanes(v).splat(lanes), x, to=F32, lanes=lanes, cpu=cpu)
    np.testing.assert_array_equal(got, np.repeat(x.reshape(-1, lanes).max(axis=1), lanes))


def same_halves(got: np.ndarray, want: np.ndarray) -> None:
    """Bit for bit as uint16, but for what a NaN carries."""
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got.view(np.float16)), nan)
    np.testing.assert_array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("cpu", CPUS)
@np.errstate(all="ignore")
def test_load_halves(cpu: str | None, lanes: int) -> None:
    """All 65536 half floats are read exactly: denormals, infinities, signs of zeros; NaN is NaN."""
    halves, out = np.arange(1 << 16, dtype=np.uint16), np.zeros(1 << 16, F32)

    def write(k: Kernel, source: Any, place: Any) -> None:
        for i in k.loop(0, 1 << 16, lanes):
            place.store(verbs.load_halves(source, lanes, i * 2), i * 4)

    run(write, halves, out, cpu=cpu)
    want = halves.view(np.float16).astype(F32)
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(out), nan)
    np.testing.assert_array_equal(out.view(np.uint32)[~nan], want.view(np.uint32)[~nan])


def hard_to_round() -> np.ndarray:
    """Every half float, every middle between two neighbours, the f32 on both sides of each; and random bits."""
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(F32)
    halves[-1] = 65536  # what would come after the largest
    middles = (halves[:-1] + halves[1:]) / 2
    at = np.concatenate([halves, middles])
    beside = np.concatenate([at, np.nextafter(at, F32(np.inf)), np.nextafter(at, F32(-np.inf))])
    random = np.random.default_rng(7).integers(0, 1 << 32, 1 << 15, np.uint32).view(F32)
    special = np.array([np.inf, np.nan, 3.4e38, 65519.996, 65520, 1e-45, 2.9e-8, 2.98023224e-8, 5.96e-8], F32)
    values = np.concatenate([beside, -beside, random, special, -special])
    return np.resize(values, -(-len(values) // 16) * 16)


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("cpu", CPUS)
@np.errstate(all="ignore")
def test_round_halves(cpu: str | None, lanes: int) -> None:
    """f32 to half floats is NumPy's rounding, to nearest even: denormals, overflow to infinity; NaN is NaN."""
    x = hard_to_round()
    got = apply(verbs.round_halves, x, to=np.uint16, lanes=lanes, cpu=cpu)
    same_halves(got, x.astype(np.float16))


@pytest.mark.parametrize("cpu", [CPUS[0], None])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_floats_in_memory(kind: str, cpu: str | None) -> None:
    """Stored as F32, F16 or BF16 and loaded again, a value is what rounding to nearest even makes of it."""
    x = floats(low=-1000, high=1000)
    size = {"F32": 4, "F16": 2, "BF16": 2}[kind]
    stored, out = np.zeros(x.size * size, np.uint8), np.zeros_like(x)

    def write(k: Kernel, source: Any, place: Any, target: Any) -> None:
        for i in k.loop(0, x.size, 16):
            verbs.store_floats(place, kind, source.load("f32", 16, i * 4), i * size)
            target.store(verbs.load_floats(place, kind, 16, i * size), i * 4)

    run(write, x, stored, out, cpu=cpu)
    want: dict[str, Callable[[], np.ndarray]] = {
        "F32": lambda: x,
        "F16": lambda: x.astype(np.float16).astype(F32),
        "BF16": lambda: nearest_bf16(x),
    }
    np.testing.assert_array_equal(out, want[kind]())


def nearest_bf16(x: np.ndarray) -> np.ndarray:
    """The upper 16 bits nearest to each f32, the even one of two as near; by comparing, not by adding bits."""
    low = (x.view(np.uint32) & 0xFFFF0000).view(F32)
    high = ((x.view(np.uint32) & 0xFFFF0000) + np.uint32(0x10000)).view(F32)
    below, above = np.abs(x.astype(np.float64) - low), np.abs(high.astype(np.float64) - x)
    odd = (x.view(np.uint32) >> 16) & 1 == 1
    return np.where((above < below) | ((above == below) & odd), high, low)


def test_exp_needs_no_more_than_it_says() -> None:
    """exp of one value and of many has the same bits, so a lane's result does not depend on its neighbours."""
    x = floats(low=-87, high=88, count=256)

    def lanes_apart(v: Value) -> Value:
        parts = [verbs.exp(v[i]) for i in range(v.lanes)]
        joined = parts[0].pair(parts[1])
        for i in range(2, v.lanes, 2):
            joined = joined.cat(parts[i].pair(parts[i + 1]))
        return joined

    np.testing.assert_array_equal(apply(lanes_apart, x, to=F32), apply(verbs.exp, x, to=F32))
