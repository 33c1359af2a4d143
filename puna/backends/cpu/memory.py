"""Memory that kernels read: aligned, zeroed, in huge pages where the system has them, given back when dropped."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALIGN", "allocate"]

ALIGN = 64
HUGE = 2 << 20  # bytes of a huge page


def allocate(nbytes: int) -> NDArray[np.uint8]:
    """Zeroed bytes on a page boundary. No memory is taken until a page is first touched."""
    if nbytes == 0:
        return np.zeros(0, np.uint8)
    # Private: what could be shared with other processes gets no huge pages.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    block = mmap.mmap(-1, nbytes, **private)
    if nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages: small ones serve
            block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8)
