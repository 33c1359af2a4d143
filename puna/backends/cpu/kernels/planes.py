"""Numbers in planes of bits, both ways, and memory to put them into."""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ir

from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.backends.cpu.panels import VECTOR, planes_of
from puna.backends.cpu.values import BYTE, POINTER

__all__ = ["room", "store_planes", "unpack"]


def unpack(at: Ptr, bits: int, count: int, align: int = VECTOR) -> list[Value]:
    """`count` vectors of numbers of so many bits, u8 [64] each, from their planes."""
    vectors: list[Value | None] = [None] * count
    low = 0
    for plane in planes_of(bits):
        each = count * plane // 8  # vectors in the plane
        stored = [at.load("u8", VECTOR, (low * count // 8 + i) * VECTOR, align) for i in range(each)]
        for j in range(count):
            shift = plane * (j // each) - low
            moved = stored[j % each] >> shift if shift >= 0 else stored[j % each] << -shift
            # A plane's topmost part has nothing above it to mask away, unless it had to move up.
            whole = plane == 8 or (shift + plane == 8 and low == 0)
            part = moved if whole else moved & (((1 << plane) - 1) << low)
            known = vectors[j]
            vectors[j] = part if known is None else known | part
        low += plane
    return [vector for vector in vectors if vector is not None]


def store_planes(vectors: Sequence[Value], bits: int, out: Ptr, align: int = VECTOR) -> None:
    """Numbers of so many bits, u8 [64] each vector, in planes."""
    low = at = 0
    for plane in planes_of(bits):
        each = len(vectors) * plane // 8
        for i in range(each):
            stored = None
            for m in range(8 // plane):
                part = ((vectors[i + each * m] >> low) & ((1 << plane) - 1)) << (plane * m)
                stored = part if stored is None else stored | part
            assert stored is not None
            out.store(stored, at * VECTOR, align)
            at += 1
        low += plane


def room(k: Kernel, nbytes: int) -> Ptr:
    """Memory on the thread's stack, for as long as the kernel runs."""
    with k.b.goto_entry_block():
        slot = k.b.alloca(ir.ArrayType(BYTE, nbytes))
    slot.align, slot.type = VECTOR, POINTER
    return Ptr(k, slot)
