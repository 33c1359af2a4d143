"""The quantiser of MXFP4; the layout is told by the class in `puna.quants.mx`."""

from __future__ import annotations

import numpy as np

from puna.quants.mx import MXFP4
from puna.quants.quantizers.fits import Tile, sizes
from puna.quants.quantizers.k import joined
from puna.quants.quantizers.legacy import nibbles
from puna.quants.quantizers.search import Bytes, Floats, Groups, Scaled, Table

__all__ = ["MX_QUANTIZERS"]

MODEL = Scaled(Table(MXFP4.table, MXFP4.zero), ())


def quantize_mxfp4(x: Floats, w: Floats | None) -> Bytes:
    """Of two powers of two for a scale the better one: the lesser holds the largest value, or nearly so."""
    tile = Tile(x, sizes(x) if w is None else w, 32)
    _fraction, exponent = np.frexp(np.abs(tile.groups.x).max(axis=0))
    exponent = np.clip(exponent - 4, -124, 124)  # the largest value is from 8 to 16, the largest level 12
    groups = Groups(tile.groups.x * np.ldexp(np.float32(1), -exponent), tile.groups.w)
    gains = []
    for scale in np.array([[1], [2]], np.float32):
        MODEL.encode(groups, scale)
        _l, ll, lx = groups.sums()
        gains.append(scale * (2 * lx - scale * ll))  # what the error is less than the values' squares
    doubled = gains[1] > gains[0]
    MODEL.encode(groups, np.where(doubled, np.float32(2), np.float32(1)))
    e = (exponent + doubled + 128).astype(np.uint8)
    return joined(tile.back(e), nibbles(tile.back(MODEL.levels.places(groups.codes))))


MX_QUANTIZERS = {"MXFP4": quantize_mxfp4}
