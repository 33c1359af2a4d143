"""Quantisers of GGML's ternary types; the classes in `puna.quants.ternary` tell the layouts."""

from __future__ import annotations

import numpy as np

from puna.quants.quantizers.fits import scaled_block
from puna.quants.quantizers.pack import digits, joined, pairs
from puna.quants.quantizers.search import Bytes, Floats, Levels, Scaled

__all__ = ["TERNARY_QUANTIZERS"]

MODEL = Scaled(Levels(-1, 1), (1, 2, 4, 8))  # the first guess is right where all values are 0, d and -d


def quantize_tq1_0(x: Floats, w: Floats | None) -> Bytes:
    d, codes = scaled_block(x, w, MODEL)
    first, more, last = np.split(codes, [160, 240], axis=1)
    last = np.pad(last, ((0, 0), (0, 4)))  # of which only four digits are used
    return joined(*(digits(part.reshape(len(x), 5, -1)) for part in (first, more, last)), d)


def quantize_tq2_0(x: Floats, w: Floats | None) -> Bytes:
    d, codes = scaled_block(x, w, MODEL)
    return joined(pairs(codes), d)


TERNARY_QUANTIZERS = {"TQ1_0": quantize_tq1_0, "TQ2_0": quantize_tq2_0}
