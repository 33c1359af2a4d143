"""Quantisers that search: their errors beside llama.cpp's, what weights do, and values at the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from puna.errors import RequestError
from puna.quants import by_name, dequantize, pieces, quantize
from puna.quants.quantizers import QUANTIZERS
from puna.quants.registry import TYPES

Floats = np.ndarray[Any, np.dtype[np.float32]]

# Root mean square errors of llama.cpp's quantisers (libggml of llama-cpp-python 0.3.36) on the values of `sample`,
# without and with its weights: ggml_quantize_chunk, and the reference functions of the two types that it leaves out.
GGML = {
    "Q4_0": (0.08615, 0.07747),
    "Q4_1": (0.07829, 0.06394),
    "Q5_0": (0.04280, 0.03859),
    "Q5_1": (0.03792, 0.03089),
    "Q8_0": (0.00536, 0.00535),
    "Q8_1": (0.00536, 0.00535),
    "Q2_K": (0.29777, 0.23677),
    "Q3_K": (0.15205, 0.13462),
    "Q4_K": (0.07174, 0.06490),
    "Q5_K": (0.03615, 0.03293),
    "Q6_K": (0.01778, 0.01628),
    "Q8_K": (0.00698, 0.00699),
    "IQ4_NL": (0.07637, 0.07043),
    "IQ4_XS": (0.07694, 0.07118),
    "TQ1_0": (0.80904, 0.80654),
    "TQ2_0": (0.80904, 0.80654),
    "MXFP4": (0.11493, 0.11454),
}
SAME = {"Q8_0", "Q8_1", "Q8_K"}  # which take no heed of weights
LEAST = 6e-8  # half floats hold nothing between 0 and this


def sample() -> tuple[Floats, Floats]:
    """Values [64, 1024] of a normal distribution, and weights of the columns."""
    random = np.random.default_rng(11)
    x = random.standard_normal((64, 1024), np.float32)
    return x, np.exp(random.standard_normal(1024, np.float32))


def returned(name: str, x: Floats, weights: Floats | None = None) -> Floats:
    return dequantize(by_name(name), quantize(by_name(name), x, weights))


def error(y: Floats, x: Floats, weights: Floats | None = None) -> float:
    squares = (y.astype(np.float64) - x) ** 2
    return float(np.sqrt(np.average(squares.mean(axis=0), weights=weights)))


def test_every_type_of_blocks_is_here() -> None:
    """The table above names all quantisers but those of numbers that stand alone."""
    assert set(GGML) == {name for name in QUANTIZERS if by_name(name).block > 1}


@pytest.mark.parametrize("name", GGML)
def test_errors_are_at_most_those_of_ggml(name: str) -> None:
    """On Gaussian values, without and with weights, the error is no greater than llama.cpp's."""
    x, weights = sample()
    for given, bound in zip((None, weights), GGML[name], strict=True):
        assert error(returned(name, x, given), x, given) <= bound + 5e-6  # half of its last digit


@pytest.mark.parametrize("name", [name for name in GGML if name not in SAME])
def test_weights_shift_the_error(name: str) -> None:
    """With weights the weighted error falls and the plain one rises."""
    x, weights = sample()
    plain, weighted = returned(name, x, np.ones_like(weights)), returned(name, x, weights)
    assert error(weighted, x, weights) < error(plain, x, weights)
    assert error(weighted, x) > error(plain, x)


@pytest.mark.parametrize("name", GGML)
def test_only_ratios_of_weights_count(name: str) -> None:
    """Weights times a power of two give the same bytes; a block without weight is as one with equal weights."""
    (x, weights), quant = sample(), by_name(name)
    x, weights = x[:4, :512], weights[:512]
    assert np.array_equal(quantize(quant, x, weights), quantize(quant, x, weights * 1024))
    weights[:256] = 0
    none, ones = quantize(quant, x, weights), quantize(quant, x, np.where(weights == 0, 1, weights))
    assert np.array_equal(none, ones)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4"])
def test_columns_without_weight(name: str) -> None:
    """They change next to nothing in the others, and still come back within the block's range."""
    x, weights = sample()
    weights[::2] = 0
    y = returned(name, x, weights)
    assert error(y, x, weights) < error(returned(name, x, np.ones_like(weights)), x, weights)
    assert np.abs(y - x).max() < 2 * np.abs(x).max()


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_cuts_and_threads_change_nothing(name: str, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of any size, threads, leading axes and strides give the same bytes, down to a block alone."""
    (x, columns), quant = sample(), by_name(name)
    x, weights = x[:6, :768], columns[:768] if weighted else None
    whole = quantize(quant, x, weights)
    assert np.array_equal(
        quantize(quant, np.asfortranarray(x).reshape(2, 3, 768), weights), whole.reshape(2, 3, -1)
    )
    for blocks in (1, 17):
        monkeypatch.setattr(pieces, "PIECE", blocks * max(32, quant.block))
        for threads in (1, 3):
            assert np.array_equal(quantize(quant, x, weights, threads), whole)
    assert quantize(quant, x[:0], weights).shape == (0, whole.shape[1])


@pytest.mark.parametrize("name", GGML)
@pytest.mark.parametrize("weighted", [False, True])
def test_zeros_and_numbers_near_zero(name: str, weighted: bool) -> None:
    """Zeros come back as zeros; values too small for a half-float scale come back near zero."""
    x, weights = sample()
    x, given = x[:2, :256], weights[:256] if weighted else None
    for factor in (0, 1e-40, 1e-30, 1e-12):
        y = returned(name, x * np.float32(factor), given)
        assert np.abs(y).max() <= (LEAST if factor else 0)


@pytest.mark.parametrize("name", GGML)
@pytest.mark.parametrize("weighted", [False, True])
def test_constants(name: str, weighted: bool) -> None:
    """A constant comes back to within the rounding of its scale, or of what multiples of a power of two allow."""
    _x, weights = sample()
    for value in (3.3, -3.3, 1e-3):
        x = np.full((1, 256), value, np.float32)
        y = returned(name, x, weights[:256] if weighted else None)
        assert np.abs(y - x).max() <= abs(value) * (0.1 if name == "MXFP4" else 0.02)


@pytest.mark.parametrize("name", GGML)
def test_one_value_among_zeros(name: str) -> None:
    """It comes back nearly whole, and the zeros as nearly zero."""
    for value in (5, -5):
        x = np.zeros((1, 256), np.float32)
        x[0, 37] = value
        assert np.abs(returned(name, x) - x).max() <= (1 if name == "MXFP4" else 0.05)


@pytest.mark.parametrize("name", GGML)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, -1e12])
def test_values_out_of_range(name: str, bad: float) -> None:
    """Infinities and NaN are refused, and what no block can hold; types whose scales are wide hold all numbers."""
    (x, weights), quant = sample(), by_name(name)
    x = x[:3, :256]
    x[1, 40] = bad
    for given in (None, weights[:256]):
        if np.isfinite(bad) and name in {"Q8_K", "MXFP4"}:
            assert abs(returned(name, x, given)[1, 40] / bad - 1) < 0.2
        else:
            with pytest.raises(RequestError, match="infinite, NaN or too large"):
                quantize(quant, x, given, threads=2)


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0"])
def test_ternary_values_come_back(name: str) -> None:
    """Blocks of 0, d and -d, d a half float, are exact, with weights too."""
    random = np.random.default_rng(3)
    d = (10.0 ** random.uniform(-4, 3, (50, 1))).astype(np.float16).astype(np.float32)
    x = random.integers(-1, 2, (50, 256)).astype(np.float32) * d
    assert np.array_equal(returned(name, x), x)
    assert np.array_equal(returned(name, x, random.random(256, np.float32)), x)


def test_values_of_mxfp4_come_back() -> None:
    """What blocks of MXFP4 hold is exact, at all but the least scales, with weights too."""
    random, quant = np.random.default_rng(3), by_name("MXFP4")
    raw = random.integers(0, 256, (250, quant.bytes), np.uint8)
    raw[:, 0] = np.arange(3, 253)
    x = dequantize(quant, raw)
    assert np.array_equal(returned("MXFP4", x), x)
    assert np.array_equal(returned("MXFP4", x, random.random(32, np.float32)), x)


def test_values_of_q8_k_come_back() -> None:
    """Whole numbers up to 127 under a scale are exact, the largest one as -127, and sums of 16 stand behind."""
    codes = np.random.default_rng(3).integers(-126, 127, (20, 256))
    codes[:, 7] = -127
    raw = quantize(by_name("Q8_K"), (codes / 8).astype(np.float32))
    assert np.array_equal(raw[:, 4:260].view(np.int8), codes)
    assert np.array_equal(raw[:, :4].copy().view("<f4"), np.full((20, 1), 0.125, np.float32))
    assert np.array_equal(raw[:, 260:].copy().view("<i2"), codes.reshape(20, 16, 16).sum(axis=2))


def test_q8_1_is_q8_0_and_a_sum() -> None:
    """Scale and codes are Q8_0's; between them stands the scale times the sum of the codes."""
    x, _weights = sample()
    one, zero = (quantize(by_name(name), x).reshape(-1, by_name(name).bytes) for name in ("Q8_1", "Q8_0"))
    assert np.array_equal(one[:, [0, 1, *range(4, 36)]], zero)
    d = np.abs(x).reshape(-1, 32).max(axis=1) / np.float32(127)
    sums = d * one[:, 4:].view(np.int8).sum(axis=1).astype(np.float32)
    assert np.array_equal(one[:, 2:4].copy().view("<f2")[:, 0], sums.astype(np.float16))


def test_types_that_are_only_read() -> None:
    """The error of a type without a quantiser says so and names those that have one."""
    readable = [quant for quant in TYPES.values() if quant.name not in QUANTIZERS]
    assert {"IQ2_XXS", "NVFP4", "Q1_0"} < {quant.name for quant in readable}
    for quant in readable:
        with pytest.raises(
            RequestError, match=f"reads {quant.name} but cannot quantise to it; use one of F32, F16"
        ):
            quantize(quant, np.zeros(256, np.float32))


def test_wrong_weights() -> None:
    """Weights of another shape or type, negative ones and NaN are refused."""
    quant, x = by_name("Q4_K"), np.zeros((2, 512), np.float32)
    for weights in (np.ones(256, np.float32), np.ones((2, 512), np.float32), np.ones(512)):
        with pytest.raises(RequestError, match=r"weights must be float32 \[512\], not float"):
            quantize(quant, x, weights)
    for bad in (-1, np.nan, np.inf):
        weights = np.ones(512, np.float32)
        weights[5] = bad
        with pytest.raises(RequestError, match="negative, infinite or NaN"):
            quantize(quant, x, weights)
