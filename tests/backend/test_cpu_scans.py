"""Passes over a vocabulary by kernels, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from test_cpu_rig import compiler

from puna.backends.cpu.scans import KernelScans
from puna.sampling import Sampler, SamplingParams
from puna.sampling.candidates import Candidates, strongest
from puna.scans import Scans

SIZES = [1, 15, 16, 17, 512, 8192, 100_003, 262_144]


def logits(count: int) -> np.ndarray:
    values = np.random.default_rng(count).standard_normal(count) * 4
    return np.asarray(values, np.float32)


@pytest.fixture(scope="module")
def kernels() -> Scans:
    return KernelScans(compiler())


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("segments", [1, 7, 512])
def test_maxima(kernels: Scans, count: int, segments: int) -> None:
    """The same maxima; a NaN of either sign comes through, and so do infinities."""
    if count < segments:
        pytest.skip("a run has one logit at least")
    plain, odd = logits(count), logits(count)
    odd[:: max(1, count // 3)] = [np.nan, -np.nan, np.inf, -np.inf][count % 4]
    for x in (plain, odd, np.full_like(plain, -np.inf)):
        np.testing.assert_array_equal(kernels.maxima(x, segments), Scans().maxima(x, segments))


@pytest.mark.parametrize("count", SIZES)
def test_weights(kernels: Scans, count: int) -> None:
    """exp(logit - most), 0 for what is ruled out."""
    x = logits(count)
    x[count // 2 :: 5] = -np.inf
    most = float(x.max()) if np.isfinite(x.max()) else 0.0
    np.testing.assert_allclose(kernels.weights(x, most), np.exp(x - np.float32(most)), rtol=4e-7)


@pytest.mark.parametrize("count", [2048, 100_003, 262_144])
def test_strongest(kernels: Scans, count: int) -> None:
    """The k highest, equal ones in order of id, whatever passes over them."""
    plain = logits(count)
    sparse = np.full(count, -np.inf, np.float32)
    sparse[[5, count // 2, count - 1]] = [1, 3, 3]
    for x in (plain, np.round(plain), np.sort(plain), np.sort(plain)[::-1].copy(), sparse):
        order = np.argsort(-x, kind="stable")
        for k in (1, 40, 1000):
            want = order[:k][x[order[:k]] > -np.inf]
            for scans in (kernels, Scans()):
                np.testing.assert_array_equal(strongest(Candidates(x, scans=scans), k), want)


def test_a_sampler_draws_the_same_tokens(kernels: Scans) -> None:
    """A seed gives the same tokens by kernels and by NumPy."""
    for params in (SamplingParams(seed=4), SamplingParams(seed=4, top_k=0), SamplingParams(temp=0)):
        one, two = (Sampler(params, 50_000, scans=scans) for scans in (kernels, Scans()))
        assert [one.sample(logits(50_000)) for _ in range(20)] == [
            two.sample(logits(50_000)) for _ in range(20)
        ]
