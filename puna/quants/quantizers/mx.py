"""The quantiser of MXFP4; the class in `puna.quants.mx` tells the layout."""

from __future__ import annotations

import numpy as np

from puna.quants.mx import MXFP4
from puna.quants.quantizers.fits import Tile, sizes
from puna.quants.quantizers.pack import joined, nibbles
from puna.quants.quantizers.search import Bytes, Floats, Scaled, Table

__all__ = ["MX_QUANTIZERS"]

MODEL = Scaled(Table(MXFP4.table, MXFP4.zero), ())


def quantize_mxfp4(x: Floats, w: Floats | None) -> Bytes:
    """Of two powers of two for a scale the better one: the lesser holds the largest value, or nearly so."""
    _fraction, exponent = np.frexp(np.abs(x).max(axis=1))
    exponent = np.clip(exponent - 4, -127, 123)  # the largest value becomes 8 to 16; the largest level is 12
    x = x * np.ldexp(np.ones_like(x[:, :1]), -exponent[:, None])
    tile = Tile(x, sizes(x) if w is None else w, 32)
    gains = []
    for scale in np.array([[1], [2]], np.float32):
        MODEL.encode(tile.groups, scale)
        _l, ll, lx = tile.groups.sums()
        gains.append(scale * (2 * lx - scale * ll))  # by what the error is less than the sum of squares
    doubled = gains[1] > gains[0]
    MODEL.encode(tile.groups, np.where(doubled, np.float32(2), np.float32(1)))
    e = exponent + tile.back(doubled) + 128
    return joined(e.astype(np.uint8), nibbles(tile.back(MODEL.levels.places(tile.groups.codes))))


MX_QUANTIZERS = {"MXFP4": quantize_mxfp4}
