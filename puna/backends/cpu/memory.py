"""Memory that kernels read: aligned, zeroed, taken page by page as it is touched, given back when dropped."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray

from puna.errors import BackendError
from puna.graph import Node
from puna.plan.plan import BYTES
from puna.units import human

__all__ = ["ALIGN", "Allocate", "allocate", "prefer_huge", "row_bytes"]

ALIGN = 64
Allocate = Callable[[int], NDArray[np.uint8]]


def allocate(nbytes: int, align: int = ALIGN) -> NDArray[np.uint8]:
    """Zeroed bytes on a page boundary, and at a multiple of `align`, a power of two.

    No memory is taken until a page is first touched. Raises BackendError where the system does not give them.
    """
    if nbytes == 0:
        return np.zeros(0, np.uint8)
    # Private: what could be shared with other processes gets no huge pages.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    spare = align if align > mmap.PAGESIZE else 0
    try:
        block = np.frombuffer(mmap.mmap(-1, nbytes + spare, **private), np.uint8)
        return block[-block.ctypes.data % align :][:nbytes]
    except (OSError, OverflowError) as error:
        raise BackendError(
            f"the system does not give {human(nbytes)} of memory: {error}", fix="lower the context (-c)"
        ) from error


def prefer_huge(block: NDArray[np.uint8]) -> None:
    """Let the system join a block's pages into huge ones, where it has them, in its own time.

    Said after the pages are filled: said before, each first touch may wait while the system looks for a huge page,
    which has taken seconds for a gigabyte.
    """
    owner: object = block
    while not isinstance(owner, mmap.mmap) and owner is not None:
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages: small ones serve
            owner.madvise(mmap.MADV_HUGEPAGE)


def row_bytes(node: Node) -> int:
    """Bytes of one row of a value."""
    return int(prod(cast("tuple[int, ...]", node.type.shape[1:])) * BYTES[node.type.dtype])
