"""Matrix products against float64, their bits from either kernel, and what they leave alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from random_blocks import plain_rows
from test_cpu_rig import (
    FLOATS,
    QUANTIZED,
    Guarded,
    activations,
    as_they_are,
    compiler,
    filled_rows,
    groups_of,
    linear,
    pack_matrix,
    random_rows,
    run,
)

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.direct import float_direct
from puna.backends.cpu.kernels.floats import PAIRS, float_bytes, float_linear, float_pack
from puna.backends.cpu.products import FEW
from puna.quants import by_name, dequantize

ROUND = 2.0**-24  # the most that rounding to float32 is off, relative to the number
# Rows that fill panels and do not, and an odd number of panels.
ROWS = [1, 16, 17, 33, 199]
# Tokens about the edges of a tile of `many`.
TILE = 6  # tokens of the largest tile of any processor
TOKENS = sorted({1, TILE - 1, TILE, TILE + 1, 2 * TILE, 2 * TILE + 1})


def product(kind: str, raw: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x @ w.T in float64 for float32 scales and offsets, and how far float32 sums of groups may be from it."""
    quant, parts = by_name(kind), groups_of(kind, raw)
    groups = x.shape[1] // quant.group
    codes = (parts["codes"].astype(np.float64) - quant.zero).reshape(len(raw), groups, -1)
    scaled = codes * parts["scale"].astype(np.float64)[..., None]
    weights, sizes = scaled, np.abs(scaled)
    if quant.has_offset:
        weights = scaled + parts["offset"].astype(np.float64)[..., None]
        sizes = sizes + np.abs(parts["offset"].astype(np.float64))[..., None]
    flat = len(raw), -1
    # Each group is added twice at most; its scale, its sum and the product are rounded before.
    bound = ROUND * (2 * groups + 8) * (np.abs(x) @ sizes.reshape(flat).T)
    return x @ weights.reshape(flat).T, bound


def width_of(kind: str, least: int) -> int:
    """Values of a row of whole blocks, some more than one."""
    block = by_name(kind).block
    return max(2, -(-least // block)) * block


def several(kind: str) -> int:
    """A number of tokens from 2 to FEW: not every number for every type, as compiling takes its time."""
    return 2 + QUANTIZED.index(kind) % (FEW - 1)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_few_tokens(kind: str) -> None:
    """For up to 8 tokens each product is the float64 product of the same numbers, but for rounding."""
    k, rng = width_of(kind, 96), np.random.default_rng(1)
    x, values = activations(rng.standard_normal((FEW, k)))
    for tokens in (1, several(kind)):
        rows = ROWS[tokens % len(ROWS)]
        raw = random_rows(kind, rows, k, rng)
        got = linear(kind, pack_matrix(kind, raw, k), rows, x[:tokens], by="few")
        want, bound = product(kind, raw, values[:tokens])
        assert (np.abs(got - want) <= bound).all()


@pytest.mark.parametrize("kind", QUANTIZED)
def test_many_tokens(kind: str) -> None:
    """For tokens about the edges of a tile, and rows about those of panels, the same."""
    k, rng = width_of(kind, 192), np.random.default_rng(2)
    x, values = activations(rng.standard_normal((TOKENS[-1], k)))
    for rows in ROWS:
        raw = random_rows(kind, rows, k, rng)
        packed, (want, bound) = pack_matrix(kind, raw, k), product(kind, raw, values)
        for tokens in TOKENS:
            got = linear(kind, packed, rows, x[:tokens], by="many")
            assert (np.abs(got - want[:tokens]) <= bound[:tokens]).all()


@pytest.mark.parametrize("kind", QUANTIZED)
def test_both_kernels_give_the_same_bits(kind: str) -> None:
    """A token's products are the same bits from `few` and from `many`, whatever tokens stand beside it."""
    k, rows, rng = 3 * by_name(kind).block, 199, np.random.default_rng(3)
    packed = pack_matrix(kind, random_rows(kind, rows, k, rng), k)
    x, _ = activations(
        rng.standard_normal((2 * TILE + 1, k)) * np.exp(3 * rng.standard_normal((2 * TILE + 1, 1)))
    )
    want = linear(kind, packed, rows, x, by="many")
    for first, tokens in ((0, 1), (3, several(kind))):
        got = linear(kind, packed, rows, x[first : first + tokens], by="few")
        np.testing.assert_array_equal(got.view(np.uint32), want[first : first + tokens].view(np.uint32))
    got = linear(kind, packed, rows, x[::-1].copy(), by="many")[::-1]
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("kind", QUANTIZED)
def test_rows_as_they_are_give_the_same_bits(kind: str) -> None:
    """Products straight from the file's rows are those from panels, to the bit."""
    k, rng = 2 * by_name(kind).block, np.random.default_rng(4)
    x, _ = activations(rng.standard_normal((7, k)))
    for rows in (1, 33, 199):
        raw = random_rows(kind, rows, k, rng)
        want = linear(kind, pack_matrix(kind, raw, k), rows, x, by="many")
        for tokens in (1, 7):
            got = linear(kind, as_they_are(raw), rows, x[:tokens], by="direct")
            np.testing.assert_array_equal(got.view(np.uint32), want[:tokens].view(np.uint32))


@pytest.mark.parametrize("by", ["few", "many", "direct"])
def test_work_is_cut_freely(by: str) -> None:
    """A matrix taken in several calls, some of them empty, gives the bits that one call gives."""
    rng = np.random.default_rng(5)
    raw = random_rows("Q4_K", 199, 256, rng)
    packed = as_they_are(raw) if by == "direct" else pack_matrix("Q4_K", raw, 256)
    x, _ = activations(rng.standard_normal((2, 256)))
    whole = linear("Q4_K", packed, 199, x, by=by)
    assert (linear("Q4_K", packed, 199, x, by=by, units=(1, 1, 4)) == whole).all()


@pytest.mark.parametrize("kind", QUANTIZED)
def test_extreme_codes_do_not_overflow(kind: str) -> None:
    """Codes and activations at their ends, of either sign: the dot of a group is exact, the result finite."""
    quant, seen = by_name(kind), set[int]()
    k = quant.block
    x, values = activations(np.stack([np.ones(k), -np.ones(k), np.resize([1.0, -1.0], k)]))
    for byte in (0xFF, 0x7F, 0x80, 0x00):
        raw = filled_rows(kind, 16, k, byte)
        seen |= set(groups_of(kind, raw)["codes"].reshape(-1).tolist())
        packed, (want, bound) = pack_matrix(kind, raw, k), product(kind, raw, values)
        for by in ("few", "many"):
            assert (np.abs(linear(kind, packed, 16, x, by=by) - want) <= bound).all()
    codes = quant.table or range(quant.levels or 2**quant.bits)
    assert quant.grid is not None or {min(codes), max(codes)} <= seen


@pytest.mark.parametrize("by", ["few", "many"])
def test_nothing_else_is_read(by: str) -> None:
    """Not-a-numbers in the activations beside those of the tokens asked for leave no trace."""
    rng = np.random.default_rng(8)
    packed = pack_matrix("Q6_K", random_rows("Q6_K", 20, 256, rng), 256)
    x, _ = activations(rng.standard_normal((4, 256)))
    around = np.full((12, x.shape[1]), 0xFF, np.uint8)
    around[4:8] = x
    want = linear("Q6_K", packed, 20, x, by=by)
    assert np.isfinite(want).all()
    np.testing.assert_array_equal(linear("Q6_K", packed, 20, around[4:8], by=by), want)


# Plain types, and BF16 as pairs where this machine multiplies these.
FORMS = [*FLOATS, *[PAIRS] * bool(compiler().target.pairs)]


def type_of(form: str) -> str:
    """The type of weights in a form."""
    return "BF16" if form == PAIRS else form


def as_taken(form: str, x: np.ndarray) -> np.ndarray:
    """Activations as a form's kernels take them; those that must be BF16 already are."""
    return np.ascontiguousarray(x.view(np.uint16)[:, 1::2]) if form == PAIRS else x


def normals(form: str, rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Activations that a form's kernels take as they are."""
    x = rng.standard_normal(shape).astype(np.float32)
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32) if form == PAIRS else x


def float_product(
    form: str,
    raw: np.ndarray,
    x: np.ndarray,
    tile: int,
    cuts: tuple[int, ...] = (),
    width: int = 1,
) -> np.ndarray:
    """x [T, k] times rows [n, k] by a float kernel: f32 [T, n]; nothing but the result may be written.

    width: panels at a time; 0 for rows as they are in the file.
    """
    rows, (tokens, k), taken = len(raw), x.shape, as_taken(form, x)
    panels = Guarded(float_bytes(form, rows, k))
    count = -(-rows // 16)
    args = [raw.ctypes.data, panels.address, rows, k, raw.strides[0], 0]
    run(Spec.of(float_pack, form=form), args, 0, count)
    weights, row = (panels, 0) if width else (as_they_are(raw), raw.strides[0])
    stride = rows + 3
    out = Guarded(4 * stride * tokens)
    places = [weights.address, taken.ctypes.data, out.address]
    args = [*places, rows, k, row, taken.strides[0], 4 * stride, tokens]
    how = {"width": width} if width else {}
    for begin, end in pairwise([0, *cuts, -(-count // max(1, width))]):
        run(Spec.of(float_linear if width else float_direct, form=form, tile=tile, **how), args, begin, end)
    result = out.view(np.float32, tokens, stride)
    assert out.is_intact
    assert (result[:, rows:].view(np.uint32) == 0xA5A5A5A5).all(), "writes between the rows of results"
    return result[:, :rows].copy()


@pytest.mark.parametrize("k", [1, 3, 4, 30, 64])
@pytest.mark.parametrize("form", FORMS)
def test_float_weights(form: str, k: int) -> None:
    """Rows and widths that fill nothing: the float64 product but for rounding, and exact for small whole numbers."""
    rng, kind, k = np.random.default_rng([9, k]), type_of(form), 2 * k if form == PAIRS else k
    for rows, tokens in zip(ROWS, (1, 5, 3, 9, 4), strict=True):
        x = normals(form, rng, tokens, k)
        raw = random_rows(kind, rows, k, rng)
        weights = dequantize(by_name(kind), raw).astype(np.float64)
        got = float_product(form, raw, x, min(4, tokens))
        assert (np.abs(got - x @ weights.T) <= ROUND * (k + 4) * (np.abs(x) @ np.abs(weights.T))).all()
        whole = np.clip(np.rint(4 * weights), -100, 100).astype(np.float32)
        x = rng.integers(-9, 10, (tokens, k)).astype(np.float32)
        got = float_product(form, plain_rows(kind, whole), x, min(4, tokens), width=2)
        np.testing.assert_array_equal(got, x @ whole.T)


@pytest.mark.parametrize("form", FORMS)
def test_float_bits_do_not_depend_on_the_tile(form: str) -> None:
    """A token's products are the same bits in any tile, beside any tokens, from panels however cut, or from rows."""
    rng, k = np.random.default_rng(10), 206 if form == PAIRS else 103
    raw, x = random_rows(type_of(form), 70, k, rng), normals(form, rng, 9, k)
    want = float_product(form, raw, x, 4)
    for tile in (1, 2, 3, 4):
        for first in (0, 4):
            got = float_product(form, raw, x[first : first + tile], tile)
            np.testing.assert_array_equal(got.view(np.uint32), want[first : first + tile].view(np.uint32))
    np.testing.assert_array_equal(float_product(form, raw, x, 4, cuts=(2, 2, 3)), want)
    for tile, cuts, width in ((3, (), 2), (3, (1, 2), 2), (1, (), 0), (4, (2, 2, 3), 0)):
        got = float_product(form, raw, x, tile, cuts, width)
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
