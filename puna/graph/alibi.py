"""Attention with linear biases (Press et al. 2021, arXiv:2108.12409)."""

from __future__ import annotations

__all__ = ["slopes"]


def slopes(heads: int, most: float) -> list[float]:
    """The slope of each head: what a score loses for each position that a key lies back.

    Powers of 2 ** (-most / n) for the first n heads, n the largest power of two in `heads`; the rest fill in between,
    at odd powers of its square root.
    """
    n = 1 << (heads.bit_length() - 1)
    base, between = 2.0 ** (-most / n), 2.0 ** (-most / (2 * n))
    return [base ** (h + 1) if h < n else between ** (2 * (h - n) + 1) for h in range(heads)]
