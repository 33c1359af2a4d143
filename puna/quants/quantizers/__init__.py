"""Quantisers in NumPy: float32 [n, block] and, or None, weights of that shape, to uint8 [n, bytes].

A weight says by how much a value's squared error counts. Blocks do not depend on one another.
"""

from __future__ import annotations

from collections.abc import Callable

from puna.quants.quantizers.iq4 import IQ4_QUANTIZERS
from puna.quants.quantizers.k import K_QUANTIZERS
from puna.quants.quantizers.legacy import LEGACY_QUANTIZERS
from puna.quants.quantizers.mx import MX_QUANTIZERS
from puna.quants.quantizers.plain import PLAIN_QUANTIZERS
from puna.quants.quantizers.search import Bytes, Floats
from puna.quants.quantizers.ternary import TERNARY_QUANTIZERS

__all__ = ["QUANTIZERS"]

QUANTIZERS: dict[str, Callable[[Floats, Floats | None], Bytes]] = {
    **PLAIN_QUANTIZERS,
    **LEGACY_QUANTIZERS,
    **K_QUANTIZERS,
    **IQ4_QUANTIZERS,
    **TERNARY_QUANTIZERS,
    **MX_QUANTIZERS,
}
