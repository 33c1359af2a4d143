"""Rows of blocks of every type for tests of kernels, and what puna.quants reads from them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from puna.quants import QuantType, by_name, dequantize
from puna.quants.lanes import NumpyBlock, as_array

__all__ = ["filled_rows", "groups_of", "plain_rows", "random_rows"]

# Byte of the half float that scales, and of the one that shifts; elsewhere byte 0 alone.
HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108, None),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208, None),
    "TQ1_0": (52, None),
    "TQ2_0": (64, None),
}
# The words of plain types; BF16 is made of F32's upper half.
WORDS = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


def plain_rows(kind: str, values: np.ndarray) -> np.ndarray:
    """Values in a plain type that can hold them, or without what it cannot hold: uint8 [rows, row bytes]."""
    if kind == "BF16":
        return (values.astype("<f4").view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    return values.astype(WORDS[kind]).view(np.uint8)


def halves(quant: QuantType, raw: np.ndarray, scales: np.ndarray, signs: np.ndarray) -> None:
    scale_at, shift_at = HALVES.get(quant.name, (0, None))
    raw[..., scale_at : scale_at + 2] = scales.astype("<f2")[..., None].view(np.uint8)
    if shift_at is not None:  # balances the codes' mean
        shifts = scales * signs * 2.0 ** (quant.bits - 1)
        raw[..., shift_at : shift_at + 2] = shifts.astype("<f2")[..., None].view(np.uint8)


def singles(quant: QuantType, raw: np.ndarray, scales: np.ndarray, signs: np.ndarray) -> None:
    raw[..., :4] = scales.astype("<f4")[..., None].view(np.uint8)


def nibbles(quant: QuantType, raw: np.ndarray, scales: np.ndarray, signs: np.ndarray) -> None:
    bits = scales.astype("<f2").view("<u2")
    for i in range(4):
        raw[..., 49 + 2 * i] = raw[..., 49 + 2 * i] & 15 | (bits >> 4 * i & 15) << 4


def exponents(quant: QuantType, raw: np.ndarray, scales: np.ndarray, signs: np.ndarray) -> None:
    raw[..., 0] = np.rint(np.log2(np.abs(scales))) + 128


def small_floats(quant: QuantType, raw: np.ndarray, scales: np.ndarray, signs: np.ndarray) -> None:
    """A byte a group, of which 56 stands for the scale 1/2 and each 8 more for twice as much."""
    raw[..., :4] = np.clip(np.rint(64 + 8 * np.log2(np.abs(scales))), 1, 126)[..., None]


SCALED: dict[str, Callable[[QuantType, np.ndarray, np.ndarray, np.ndarray], None]] = {
    "Q8_K": singles,
    "IQ1_M": nibbles,
    "MXFP4": exponents,
    "NVFP4": small_floats,
}


def random_rows(kind: str, rows: int, k: int, rng: np.random.Generator, size: float = 1.0) -> np.ndarray:
    """Sound rows of blocks, uint8 [rows, row bytes]: every code, scales of both signs; values of about `size`."""
    quant = by_name(kind)
    if quant.is_float:
        # Integers up to some dozens, and of F64 what F32 has to round.
        return plain_rows(kind, size * (8 if kind[0] == "I" else 1) * rng.standard_normal((rows, k)))
    raw = rng.integers(0, 256, (rows, k // quant.block, quant.bytes), np.uint8)
    signs = rng.choice([-1.0, 1.0], (2, *raw.shape[:2]))
    fill = SCALED.get(kind, halves)
    scales = rng.uniform(0.5, 1.5, raw.shape[:2]) * signs[0]
    fill(quant, raw, scales, signs[1])
    deviation = float(dequantize(quant, raw.reshape(1, -1)).std())
    fill(quant, raw, size / deviation * scales, signs[1])
    return raw.reshape(rows, -1)


def filled_rows(kind: str, rows: int, k: int, byte: int) -> np.ndarray:
    """Rows of a quantised type whose bytes are all the same, but for the scales of blocks, which are 1."""
    quant = by_name(kind)
    raw = np.full((rows, k // quant.block, quant.bytes), byte, np.uint8)
    SCALED.get(kind, halves)(quant, raw, np.ones(raw.shape[:2]), np.ones(raw.shape[:2]))
    return raw.reshape(rows, -1)


def groups_of(kind: str, raw: np.ndarray) -> dict[str, np.ndarray]:
    """What puna.quants reads from rows of blocks: codes [rows, k], the rest a number a unit or a group."""
    quant = by_name(kind)
    block = NumpyBlock(raw.reshape(len(raw), -1, quant.bytes))
    found: dict[str, np.ndarray] = {}
    for name in ("unit", "low", "codes", "step", "low_step", "scale", "offset"):
        each = quant.unit_groups if name in {"unit", "low"} else 1
        parts = [getattr(quant, name)(block, g) for g in range(0, quant.groups, each)]
        if parts[0] is not None:
            found[name] = np.stack([as_array(part) for part in parts], axis=2).reshape(len(raw), -1)
    return found
