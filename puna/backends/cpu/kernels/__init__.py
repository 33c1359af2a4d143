"""Kernels, each a function that writes one: `write(k, **static)`. Called as f(args, begin, end, scratch)."""

from __future__ import annotations

from puna.backends.cpu.kernels.attention import attend
from puna.backends.cpu.kernels.floats import float_linear, float_pack
from puna.backends.cpu.kernels.linear import few, many
from puna.backends.cpu.kernels.pack import pack
from puna.backends.cpu.kernels.rows import rows

__all__ = ["attend", "few", "float_linear", "float_pack", "many", "pack", "rows"]
