"""The reference backend: NumPy, its BLAS doing the products. The oracle that other backends are checked against."""

from __future__ import annotations

from puna.backends.reference.backend import ReferenceBackend, create

__all__ = ["ReferenceBackend", "create"]
