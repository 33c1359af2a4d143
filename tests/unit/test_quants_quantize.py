"""Quantisers that give GGML's reference bits: against the gguf package's, and what they refuse."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

from puna.errors import FormatError, RequestError
from puna.quants import by_name, dequantize, pieces, quantize

BLOCKS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
EXACT = ["F32", "F16", "BF16", *BLOCKS]


def expected(name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        return gguf.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8)


def rows() -> np.ndarray[Any, Any]:
    """Rows of 64: random at many magnitudes, constant, zero, one-sided, sparse, and full of rounding ties."""
    rng = np.random.default_rng(7)
    random = rng.standard_normal((200, 64)) * 10.0 ** rng.integers(-7, 4, (200, 1))
    ties = np.arange(64) - 31.5
    special = [
        np.zeros(64),
        -np.zeros(64),
        np.full(64, 3.25),
        np.full(64, -3.25),
        np.abs(random[0]),
        -np.abs(random[1]),
        np.eye(64)[5] * -8,
        np.where(np.arange(64) % 32 == 0, 127, ties),
        np.where(np.arange(64) % 32 == 0, -8, np.arange(64) % 15 / 2 - 3.5),
        np.arange(64) % 32 / 2,
        random[2] * 1e-30,
    ]
    return np.concatenate([random, special]).astype(np.float32)


@pytest.mark.parametrize("name", EXACT)
def test_same_bytes(name: str) -> None:
    """They give the gguf package's bytes."""
    assert np.array_equal(quantize(by_name(name), rows()), expected(name, rows()))


@pytest.mark.parametrize("name", BLOCKS)
def test_error_is_bounded(name: str) -> None:
    """A value comes back within one step of its block's range."""
    quant, values = by_name(name), rows()[:200]
    error = np.abs(dequantize(quant, quantize(quant, values)) - values).reshape(-1, 32).max(axis=1)
    span = np.ptp(np.pad(values.reshape(-1, 32), ((0, 0), (0, 1))), axis=1)
    # A step of the range, the scale's rounding to a half, and half the least subnormal half a code.
    assert (error <= span * (1 / ((1 << quant.bits) - 2) + 2**-10) + 2**-25 * (1 << quant.bits)).all()


def test_bf16_rounds_to_nearest_even() -> None:
    """Every upper half with the lower halves around the tie gives the gguf package's bits; NaN stays NaN."""
    upper = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16
    values = (upper | np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)).view(np.float32)
    raw = quantize(by_name("BF16"), values)
    assert np.array_equal(raw, expected("BF16", values))
    assert np.array_equal(np.isnan(dequantize(by_name("BF16"), raw)), np.isnan(values))


def test_scale_too_small_to_invert() -> None:
    """A block whose scale's inverse overflows is stored as zeros without a warning."""
    for name in BLOCKS:
        values = np.full(32, 1e-40, np.float32)
        values[0] = -1e-40
        assert not dequantize(by_name(name), quantize(by_name(name), values)).any()


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_values_out_of_range(name: str, bad: float) -> None:
    """A value that a block cannot hold is refused, not stored as something else."""
    values = np.ones((3, 64), np.float32)
    values[1, 40] = bad
    with pytest.raises(RequestError, match="infinite, NaN or too large"):
        quantize(by_name(name), values)


def test_f16_range() -> None:
    """F16 keeps infinities and NaN and refuses a finite value that would become infinite."""
    values = np.array([np.inf, -np.inf, np.nan, 65504], np.float32)
    assert np.array_equal(
        dequantize(by_name("F16"), quantize(by_name("F16"), values)), values, equal_nan=True
    )
    with pytest.raises(RequestError, match="too large for F16"):
        quantize(by_name("F16"), np.array([65520], np.float32))


@pytest.mark.parametrize("name", EXACT)
def test_any_shape_and_strides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces, leading axes, strides and half-precision input give the same bytes."""
    monkeypatch.setattr(pieces, "PIECE", 3 * by_name(name).block)
    values = rows()[:24].astype(np.float16)
    whole = expected(name, values.astype(np.float32)).reshape(2, 3, 4, -1)
    spread = np.zeros((2, 4, 3, 128), np.float16)[..., ::2].swapaxes(1, 2)
    spread[:] = values.reshape(2, 3, 4, 64)
    assert np.array_equal(quantize(by_name(name), spread), whole)
    column_major = np.asfortranarray(spread.astype(np.float32))
    assert np.array_equal(quantize(by_name(name), column_major), whole)
    assert quantize(by_name(name), spread[:0]).shape == (0, 3, 4, whole.shape[-1])


def test_wrong_requests() -> None:
    """Part blocks and values that float32 does not cover are named in the error."""
    with pytest.raises(FormatError, match="33 values"):
        quantize(by_name("Q4_0"), np.zeros(33, np.float32))
    with pytest.raises(RequestError, match=r"float32 rows, not float64 \[32\]"):
        quantize(by_name("Q4_0"), np.zeros(32))
    with pytest.raises(RequestError, match=r"float32 rows, not float32 \[\]"):
        quantize(by_name("F32"), np.float32(1))
