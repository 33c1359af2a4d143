"""The CPU backend: kernels written in Python, compiled by LLVM for the processor at hand."""

from __future__ import annotations

from puna.backends.cpu.backend import CPUBackend, create

__all__ = ["CPUBackend", "create"]
