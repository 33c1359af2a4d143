"""Floats: the nearest number that the type has."""

from __future__ import annotations

import numpy as np

from puna.errors import RequestError
from puna.quants.quantizers.search import Bytes, Floats

__all__ = ["PLAIN_QUANTIZERS"]


def quantize_f32(x: Floats, w: Floats | None) -> Bytes:
    return x.astype("<f4").view(np.uint8)


def quantize_f16(x: Floats, w: Floats | None) -> Bytes:
    halves = x.astype("<f2")
    if (np.isinf(halves) & np.isfinite(x)).any():
        raise RequestError("a value is too large for F16", fix="use BF16 or F32")
    return halves.view(np.uint8)


def quantize_bf16(x: Floats, w: Floats | None) -> Bytes:
    bits = x.view(np.uint32)
    nearest = bits + (0x7FFF + ((bits >> 16) & 1))  # to nearest, ties to even
    quiet = bits | 0x400000  # rounding could turn a NaN into an infinity or zero
    return (np.where(np.isnan(x), quiet, nearest) >> 16).astype("<u2").view(np.uint8)


PLAIN_QUANTIZERS = {"F32": quantize_f32, "F16": quantize_f16, "BF16": quantize_bf16}
