"""Quantisers of GGML's IQ types of four bits; the classes in `puna.quants.iq` tell the layouts."""

from __future__ import annotations

from puna.quants.iq import IQ4_NL
from puna.quants.quantizers.fits import scaled_block, scaled_groups
from puna.quants.quantizers.k import SIGNED_SIX_BITS
from puna.quants.quantizers.pack import above, below, joined, nibbles, packed
from puna.quants.quantizers.search import Bytes, Floats, Scaled, Table

__all__ = ["IQ4_QUANTIZERS"]

MODEL = Scaled(Table(IQ4_NL.table, IQ4_NL.zero), (-148, -130, -124, -106, 114, 132))


def quantize_iq4_nl(x: Floats, w: Floats | None) -> Bytes:
    d, places = scaled_block(x, w, MODEL)
    return joined(d, nibbles(places))


def quantize_iq4_xs(x: Floats, w: Floats | None) -> Bytes:
    d, steps, places = scaled_groups(x, w, 32, MODEL, SIGNED_SIX_BITS)
    low = packed(below(steps, 4).reshape(-1, 4, 2), 2, 4)
    high = packed(above(steps, 4).reshape(-1, 2, 4), 2, 2)
    return joined(d, high, low, nibbles(places))


IQ4_QUANTIZERS = {"IQ4_NL": quantize_iq4_nl, "IQ4_XS": quantize_iq4_xs}
