"""Codes side by side in bytes. Codes are uint8 [n, ...], the first axis is that of blocks."""

from __future__ import annotations

import numpy as np

from puna.quants.quantizers.search import Bytes

__all__ = ["above", "below", "digits", "joined", "nibbles", "packed", "pairs", "six_bits"]


def below(codes: Bytes, bits: int) -> Bytes:
    """The low bits of codes."""
    result: Bytes = codes & np.uint8((1 << bits) - 1)
    return result


def above(codes: Bytes, bits: int) -> Bytes:
    """Codes without their low bits, moved down."""
    result: Bytes = codes >> np.uint8(bits)
    return result


def joined(*parts: Bytes) -> Bytes:
    """Blocks [n, bytes] of their parts in order."""
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def packed(codes: Bytes, axis: int, bits: int) -> Bytes:
    """One byte for the codes along an axis, of so many bits each, the first one lowest."""
    first, *more = np.moveaxis(codes, axis, 0)
    result: Bytes = first.copy()
    for i, code in enumerate(more, 1):
        result |= code << np.uint8(i * bits)
    return result


def nibbles(codes: Bytes) -> Bytes:
    """Four-bit codes [..., 2 k] in k bytes: the first half of them low, the second high."""
    k = codes.shape[-1] // 2
    result: Bytes = codes[..., :k] | (codes[..., k:] << np.uint8(4))
    return result


def pairs(codes: Bytes) -> Bytes:
    """Two-bit codes: in each half of a block four runs of 32 share 32 bytes, the first one lowest."""
    return packed(codes.reshape(-1, 2, 4, 32), 2, 2)


def six_bits(steps: Bytes, low_steps: Bytes) -> Bytes:
    """Twice eight numbers of six bits in 12 bytes, as `puna.quants.k.six_bits` reads them."""
    first, last = (np.concatenate([steps[:, i : i + 4], low_steps[:, i : i + 4]], axis=1) for i in (0, 4))
    return joined(first | (above(last, 4) << np.uint8(6)), nibbles(below(last, 4)))


def digits(codes: Bytes) -> Bytes:
    """Five digits to the base 3 [n, 5, bytes] as a fraction of 256, rounded up; the first digit counts most."""
    number = np.zeros((len(codes), codes.shape[2]), np.uint16)
    for code in np.moveaxis(codes, 1, 0):
        number = number * np.uint16(3) + code
    result: Bytes = ((number * np.uint16(256) + np.uint16(242)) // np.uint16(243)).astype(np.uint8)
    return result
