"""Keys and values in quantised pages: what is written, against NumPy's quantisers, and attention over it in float64."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from test_cpu_attention import PAGE, Problem, Text, shape
from test_cpu_rig import Guarded, run

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.kv import PEAKS, page_bytes
from puna.backends.cpu.kernels.rows import Operand, RowOp, rows
from puna.quants import by_name, dequantize, quantize

KINDS = ["Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL"]
BLOCK = 32
# A kernel reads keys and values by code of their own: each type of keys and of values alone and with another.
KEYS, VALUES = [*KINDS, "BF16"], [*KINDS, "F16", "F32"]
PAIRS = [*zip(KINDS, KINDS, strict=True), *zip([*KEYS, "Q8_0"], [*VALUES[2:], *VALUES[:2]], strict=True)]


def decoded(kind: str, cache: np.ndarray, heads: int, size: int, is_key: bool) -> np.ndarray:
    """What pages hold, float32 [pages, PAGE, heads, size], by the layout that the kernels document."""
    quant = by_name(kind)
    blocks = cache.reshape(-1, heads, page_bytes(kind, size))
    if is_key:  # [pages, heads, blocks, bytes * PAGE], a byte of all positions side by side, halves in twos
        blocks = blocks.reshape(-1, heads, size // BLOCK, quant.bytes * PAGE)
        codes = quant.bits * BLOCK // 8
        bytes_ = blocks[..., : codes * PAGE].reshape(*blocks.shape[:3], codes, PAGE).swapaxes(3, 4)
        halves = blocks[..., codes * PAGE :].reshape(*blocks.shape[:3], -1, PAGE, 2)
        halves = np.moveaxis(halves, 4, 3).reshape(*blocks.shape[:3], PAGE, -1)
        held = np.moveaxis(
            np.concatenate([bytes_, halves], axis=-1), 3, 1
        )  # [pages, PAGE, heads, blocks, bytes]
    else:
        held = blocks.reshape(-1, heads, PAGE, size // BLOCK, quant.bytes).swapaxes(1, 2)
    return dequantize(quant, to_file(kind, np.ascontiguousarray(held)).reshape(*held.shape[:3], -1))


def to_file(kind: str, held: np.ndarray) -> np.ndarray:
    """Blocks [.., bytes] with their parts in the order of a file's."""
    quant = by_name(kind)
    codes = quant.bits * BLOCK // 8
    parts = [held[..., codes:]]
    if quant.bits == 5:
        parts += [held[..., 16:20], held[..., :16]]
    elif quant.bits == 8:
        parts.append(held[..., :32] ^ 128)
    else:
        parts.append(held[..., :16])
    return np.concatenate(parts, axis=-1)


def written(kinds: tuple[str, str], k: np.ndarray, v: np.ndarray, pages: int) -> tuple[Guarded, Guarded]:
    """Caches that hold k and v [positions, heads, size] at slots 0, 1, ..., written by the kernel."""
    caches, operands = [], []
    for n, (kind, x) in enumerate(zip(kinds, (k, v), strict=True)):
        operands.append(Operand(n, x[0].nbytes, x.shape[1:]))
        caches.append(Guarded(pages * x.shape[1] * page_bytes(kind, x.shape[2])))
    for n, (kind, x) in enumerate(zip(kinds, (k, v), strict=True)):
        operands.append(Operand(2 + n, x.shape[1] * page_bytes(kind, x.shape[2]), (), kind))
    slots = np.arange(len(k), dtype=np.int64)
    op = RowOp("kv_store", operands[0], tuple(operands), (), (4,))
    args = [k.ctypes.data, v.ctypes.data, *(cache.address for cache in caches), slots.ctypes.data]
    run(Spec.of(rows, ops=(op,)), args, 0, len(k))
    assert all(cache.is_intact for cache in caches)
    return caches[0], caches[1]


def numbers(heads: int, size: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(size)
    return (rng.standard_normal((count, heads, size)) * rng.choice([0.01, 1, 20], (count, heads, 1))).astype(
        np.float32
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written(kind: str) -> None:
    """Pages hold what NumPy's quantiser gives, or less error where the kernel looks for a unit.

    A value that lies halfway between two codes may get either.
    """
    k, v = numbers(2, 64, 70), numbers(3, 32, 70)
    caches = written((kind, kind), k, v, 2)
    for x, cache, is_key in ((k, caches[0], True), (v, caches[1], False)):
        count, heads, size = x.shape
        held = decoded(kind, cache.array, heads, size, is_key).reshape(-1, heads, size)[:count]
        want = dequantize(by_name(kind), quantize(by_name(kind), x))
        step = np.abs(x).max(axis=-1, keepdims=True) / (1 << by_name(kind).bits - 2)
        if kind in PEAKS:  # of IQ4_NL NumPy's looks longer
            most = 1.15 if kind == "IQ4_NL" else 0.94
            assert np.square(held - x).mean() <= most * np.square(want - x).mean()
        else:
            assert (np.abs(held - want) <= step).all()
            assert (held == want).mean() > 0.995


@pytest.mark.parametrize(("key_kind", "value_kind"), PAIRS)
def test_attention(key_kind: str, value_kind: str) -> None:
    """Over pairs of types: the float64 attention over the values that the pages hold."""
    heads, size, count = 2, 64, 130
    problem = Problem(
        shape(heads_kv=heads, group=3, key=size, value=size, kinds="F32 F32"),
        [Text(count - 3, 3, (0, 1, 2))],
        3,
        5,
    )
    k, v = numbers(heads, size, count), numbers(heads, size, count)
    caches = written((key_kind, value_kind), k, v, 3)
    problem.shape = shape(heads_kv=heads, group=3, key=size, value=size, kinds=f"{key_kind} {value_kind}")
    held = []
    for kind, x, cache, is_key in ((key_kind, k, caches[0], True), (value_kind, v, caches[1], False)):
        quant = by_name(kind)
        if quant.is_float:
            held.append(dequantize(quant, quantize(quant, x)))
        else:
            held.append(decoded(kind, cache.array, heads, size, is_key).reshape(-1, heads, size)[:count])
    problem.past = [cast(Any, tuple(held))]
    problem.k_cache, problem.v_cache = caches[0].array, caches[1].array
    want = problem.expected()
    for most in (1, 8):
        np.testing.assert_allclose(problem.solve(most=most), want, rtol=2e-4, atol=2e-5 * np.abs(want).max())


def test_what_is_not_a_number_comes_through() -> None:
    """A NaN or an infinity among the keys shows in what the page holds."""
    for kind in KINDS:
        k = numbers(1, 32, 2)
        k[0, 0, 5], k[1, 0, 7] = np.nan, np.inf
        cache = written((kind, kind), k, k, 1)[0]
        held = decoded(kind, cache.array, 1, 32, True).reshape(-1, 32)[:2]
        assert not np.isfinite(held).all(axis=-1).any()
