"""Row operations that change how values are stored: quantize, embed, select, kv_store. All to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from test_cpu_rig import FLOATS, QUANTIZED, Guarded, activations, random_rows, run

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.rows import Operand, RowOp, rows
from puna.quants import by_name, dequantize, quantize


def quantized(x: np.ndarray) -> np.ndarray:
    """Rows of spans, uint8 [T, k / 32 * 48], by the kernel."""
    count, k = x.shape
    out = Guarded(count * k // 32 * 48)
    op = RowOp("quantize", Operand(1, k // 32 * 48, (k,)), (Operand(0, 4 * k, (k,)),))
    run(Spec.of(rows, ops=(op,)), [x.ctypes.data, out.address], 0, count)
    assert out.is_intact
    return out.view(np.uint8, count, -1)


def spans_of(data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes i8 [spans, 32], (scale, scaled sum) f32 [spans, 2], (sum, first sum) i32 [spans, 2]."""
    spans = data.reshape(-1, 48)
    parts = spans[:, :32], spans[:, 32:40], spans[:, 40:48]
    codes, floats, sums = (np.ascontiguousarray(part) for part in parts)
    return codes.view(np.int8), floats.view(np.float32), sums.view(np.int32)


@pytest.mark.parametrize("k", [32, 96, 512])
def test_quantize(k: int) -> None:
    """Codes, scale and sums are those of the definition, over magnitudes from 1e-30 to 1e30 and ties."""
    rng = np.random.default_rng(k)
    x = rng.standard_normal((40, k)) * 10.0 ** rng.integers(-30, 31, (40, 1))
    x[0] = np.resize([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 63.5], k)  # scale 1: halves go to the even side
    x[1, ::7] = 0
    x = x.astype(np.float32)
    got, want = quantized(x), activations(x)[0]
    for mine, definition in zip(spans_of(got), spans_of(want), strict=True):
        np.testing.assert_array_equal(mine.view(np.uint8), definition.view(np.uint8))


def test_quantize_zeros() -> None:
    """A span of zeros, of either sign, has codes, scale and sums of 0, and does not touch the next."""
    x = np.zeros((3, 96), np.float32)
    x[1] = -0.0
    x[2, 32:64] = np.linspace(-1, 1, 32)
    codes, floats, sums = spans_of(quantized(x))
    busy = [7]  # the middle span of the last row
    for part in (codes, floats, sums):
        assert not np.delete(part, busy, axis=0).any()
    assert codes[7].tolist() == np.rint(np.linspace(-127, 127, 32)).tolist()
    assert sums[7].tolist() == [0, int(codes[7, :16].sum())]


def test_quantize_denormals() -> None:
    """Values too small for their scale to be inverted become zeros or their neighbours, with sums of their codes."""
    x = np.zeros((4, 32), np.float32)
    x[:, 0], x[:, 20] = (1e-36, 1e-38, 1e-42, 1e-45), (1e-36, -1e-38, 1e-43, 0)
    codes, floats, sums = spans_of(quantized(x))
    assert (sums[:, 0] == codes.sum(axis=1)).all()
    assert (sums[:, 1] == codes[:, :16].sum(axis=1)).all()
    assert (
        np.abs(codes * floats[:, :1].astype(np.float64) - x) <= np.abs(x).max(axis=1, keepdims=True)
    ).all()


def test_quantize_the_largest_floats() -> None:
    """The largest finite numbers keep their codes, and the scale is finite."""
    x = np.full((1, 32), np.finfo(np.float32).max)
    x[0, ::2] *= -1
    codes, floats, sums = spans_of(quantized(x))
    assert codes[0].tolist() == [-127, 127] * 16
    assert np.isfinite(floats).all()
    assert not sums.any()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((place, value) for place in (0, 5, 16, 31) for value in (np.inf, -np.inf, np.nan)),
    ],
)
def test_quantize_shows_what_is_not_finite(place: int, value: float) -> None:
    """A span with a value that no code can stand for has a scale that is not finite, so that no product hides it."""
    x = np.ones((1, 64), np.float32)
    x[0, place] = value
    _, floats, _ = spans_of(quantized(x))
    assert not np.isfinite(floats[0, 0])
    assert np.isfinite(floats[1]).all()


@pytest.mark.parametrize("kind", [*FLOATS, *QUANTIZED])
def test_embed(kind: str) -> None:
    """A row of the table, of any type and width, is bit for bit what puna.quants makes of it."""
    quant = by_name(kind)
    ids = np.array([0, 7, 3, 6, 7], np.int32)
    for k in (1, 7, 20, 48) if quant.is_float else (quant.block, 3 * quant.block):
        table = random_rows(kind, 8, k, np.random.default_rng(k))
        out = Guarded(4 * k * len(ids))
        source = Operand(0, table.shape[1], (table.shape[1],), kind)
        op = RowOp("embed", Operand(2, 4 * k, (k,)), (source,), (), (1,))
        run(Spec.of(rows, ops=(op,)), [table.ctypes.data, ids.ctypes.data, out.address], 0, len(ids))
        assert out.is_intact
        want = np.ascontiguousarray(dequantize(quant, table[ids]))
        np.testing.assert_array_equal(out.view(np.uint32, len(ids), k), want.view(np.uint32))


@pytest.mark.parametrize("k", [7, 20, 64])
def test_select(k: int) -> None:
    """The rows asked for, in the order asked for."""
    x = np.random.default_rng(k).standard_normal((6, k)).astype(np.float32)
    wanted = np.array([5, 0, 3], np.int32)
    out = Guarded(4 * k * 3)
    op = RowOp("select", Operand(2, 4 * k, (k,)), (Operand(0, 4 * k, (k,)),), (), (1,))
    run(Spec.of(rows, ops=(op,)), [x.ctypes.data, wanted.ctypes.data, out.address], 0, 3)
    assert out.is_intact
    np.testing.assert_array_equal(out.view(np.float32, 3, k), x[wanted])


@pytest.mark.parametrize(
    ("k_kind", "v_kind", "heads", "key", "value"),
    [
        ("F32", "F32", 2, 8, 8),
        ("F16", "F16", 2, 64, 64),
        ("BF16", "F16", 3, 20, 9),
        ("F32", "BF16", 1, 1, 40),
        ("F16", "F32", 4, 80, 1),
    ],
)
def test_kv_store(k_kind: str, v_kind: str, heads: int, key: int, value: int) -> None:
    """A page holds keys as [heads, key, 64] and values as [heads, 64, value]; every other byte stays as it was."""
    rng = np.random.default_rng(key)
    slots = np.array([5, 64 * 2 + 63, 64, 64 * 3], np.int64)  # page * 64 + place in it
    keys = rng.standard_normal((4, heads, key)).astype(np.float32)
    values = 1e-6 * rng.standard_normal((4, heads, value), np.float32)  # denormal as halves, some of them
    word = {2: np.uint16, 4: np.uint32}
    k_word, v_word = word[by_name(k_kind).bytes], word[by_name(v_kind).bytes]
    caches = [
        Guarded(4 * heads * size * 64 * by_name(kind).bytes)
        for size, kind in ((key, k_kind), (value, v_kind))
    ]
    want_k = caches[0].view(k_word, 4, heads, key, 64).copy()
    want_v = caches[1].view(v_word, 4, heads, 64, value).copy()
    for row, slot in enumerate(slots):
        want_k[slot // 64, :, :, slot % 64] = quantize(by_name(k_kind), keys[row]).view(k_word)
        want_v[slot // 64, :, slot % 64, :] = quantize(by_name(v_kind), values[row]).view(v_word)
    inputs = (
        Operand(0, 4 * heads * key, (heads, key)),
        Operand(1, 4 * heads * value, (heads, value)),
        Operand(2, len(caches[0].array) // 4, (), k_kind),
        Operand(3, len(caches[1].array) // 4, (), v_kind),
    )
    op = RowOp("kv_store", inputs[0], inputs, (), (4,))
    places = [keys.ctypes.data, values.ctypes.data, *(cache.address for cache in caches), slots.ctypes.data]
    run(Spec.of(rows, ops=(op,)), places, 0, 4)
    np.testing.assert_array_equal(caches[0].view(k_word, 4, heads, key, 64), want_k)
    np.testing.assert_array_equal(caches[1].view(v_word, 4, heads, 64, value), want_v)
    assert caches[0].is_intact
    assert caches[1].is_intact


ROUNDED = {
    "F16": (
        [65504, 65519, 65520, -1e6, 2049, 2051, 2.0**-25, 0.5],
        [65504, 65504, np.inf, -np.inf, 2048, 2052, 0, 0.5],
    ),
    "BF16": (
        [257, 259, -257, 256.5, 3.4e38, 1, 2.0**-133, 0],
        [256, 260, -256, 256, np.inf, 1, 2.0**-133, 0],
    ),
}


@pytest.mark.parametrize("kind", ROUNDED)
def test_cached_values_are_rounded(kind: str) -> None:
    """To nearest, ties to even; what is too large is infinite, not some other number."""
    values, want = ROUNDED[kind]
    keys = np.array([[values]], np.float32)
    slots, cache = np.zeros(1, np.int64), Guarded(2 * 8 * 64)
    other = Guarded(4 * 64)
    inputs = (
        Operand(0, 32, (1, 8)),
        Operand(0, 4, (1, 1)),
        Operand(1, len(cache.array), (), kind),
        Operand(2, len(other.array), (), "F32"),
    )
    op = RowOp("kv_store", inputs[0], inputs, (), (3,))
    run(Spec.of(rows, ops=(op,)), [keys.ctypes.data, cache.address, other.address, slots.ctypes.data], 0, 1)
    stored = np.ascontiguousarray(cache.view("<u2", 8, 64)[:, 0])
    assert dequantize(by_name(kind), stored.view(np.uint8)).tolist() == want
