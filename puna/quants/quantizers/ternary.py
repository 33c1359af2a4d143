"""Quantisers of GGML's ternary types; the layouts are told by the classes in `puna.quants.ternary`."""

from __future__ import annotations

import numpy as np

from puna.quants.quantizers.fits import scaled_block
from puna.quants.quantizers.k import joined, pairs
from puna.quants.quantizers.search import Bytes, Floats, Levels, Scaled

__all__ = ["TERNARY_QUANTIZERS"]

# A block whose values are all -d, 0 or d is found by the first guess.
MODEL = Scaled(Levels(-1, 1), (1, 2, 4, 8))


def quantize_tq1_0(x: Floats, w: Floats | None) -> Bytes:
    d, codes = scaled_block(x, w, MODEL)
    fives, more, fours = np.split(codes, [160, 240], axis=1)
    fours = np.pad(fours, ((0, 0), (0, 4)))
    return joined(*(digits(part.reshape(len(x), 5, -1)) for part in (fives, more, fours)), d)


def quantize_tq2_0(x: Floats, w: Floats | None) -> Bytes:
    d, codes = scaled_block(x, w, MODEL)
    return joined(pairs(codes), d)


TERNARY_QUANTIZERS = {"TQ1_0": quantize_tq1_0, "TQ2_0": quantize_tq2_0}


def digits(codes: Bytes) -> Bytes:
    """Five digits to the base 3 [n, 5, bytes] as a fraction of 256, the first one foremost, rounded up."""
    number = np.zeros((len(codes), codes.shape[2]), np.uint16)
    for code in np.moveaxis(codes, 1, 0):
        number = number * np.uint16(3) + code
    return ((number * np.uint16(256) + np.uint16(242)) // np.uint16(243)).astype(np.uint8)
