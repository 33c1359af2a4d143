"""What a block of bytes means: GGML's tensor types, each one short class over the lane algebra."""

from __future__ import annotations

from puna.quants.base import QuantType
from puna.quants.byteorder import byteswapped
from puna.quants.convert import dequantize, quantize
from puna.quants.registry import by_id, by_name

__all__ = ["QuantType", "by_id", "by_name", "byteswapped", "dequantize", "quantize"]
