"""Keeping memory from being swapped out."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from numpy.typing import NDArray

from puna.units import human

__all__ = ["lock"]

SPARE = 64 << 20  # bytes that Windows lets a process keep in memory beside what is locked


def lock(arrays: Iterable[NDArray[Any]]) -> str:
    """Keep arrays in memory until they are let go; what a user must know, or "" where all of them are locked."""
    ranges = merged((a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays if a.nbytes)
    total = sum(end - begin for begin, end in ranges)
    lock_range, done = locker(total), 0
    for begin, end in ranges:
        if why := lock_range(begin, end - begin):
            held = f"{human(done)} of {human(total)} are" if done else f"none of {human(total)} is"
            return f"{held} locked in memory: {why}"
        done += end - begin
    return ""


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of addresses as whole pages, those that touch as one."""
    page, found = mmap.PAGESIZE, list[tuple[int, int]]()
    for begin, end in sorted(ranges):
        begin, end = begin // page * page, -(-end // page) * page
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def locker(total: int) -> Callable[[int, int], str]:
    """What locks a range, from its address and length, and says why it could not."""
    return locker_of_windows(total) if sys.platform == "win32" else locker_of_posix(total)


def locker_of_posix(total: int) -> Callable[[int, int], str]:
    library = c_library()
    if not hasattr(library, "mlock"):
        return lambda begin, size: "this system has no mlock"

    def lock_range(begin: int, size: int) -> str:
        if library.mlock(ctypes.c_void_p(begin), ctypes.c_size_t(size)) == 0:
            return ""
        return f"{os.strerror(ctypes.get_errno())}; {advice(total)}"

    return lock_range


def c_library() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def advice(total: int) -> str:
    """How to be allowed more, where a limit is in the way."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= total:
        return "free some memory, or lower the context (-c)"
    wanted = f"ulimit -l {-(-total // 1024)}, or unlimited"
    return f"this process may lock {human(soft)}; allow it more before it starts ({wanted})"


def locker_of_windows(total: int) -> Callable[[int, int], str]:
    """Windows locks no more than the least that a process is promised, so that is raised first."""
    kernel32 = getattr(ctypes, "windll").kernel32  # noqa: B009 - unknown to other systems' checkers
    handle, least, most = ctypes.c_void_p(kernel32.GetCurrentProcess()), ctypes.c_size_t(), ctypes.c_size_t()
    kernel32.GetProcessWorkingSetSize(handle, ctypes.byref(least), ctypes.byref(most))
    sizes = (ctypes.c_size_t(n.value + total + SPARE) for n in (least, most))
    kernel32.SetProcessWorkingSetSize(handle, *sizes)

    def lock_range(begin: int, size: int) -> str:
        if kernel32.VirtualLock(ctypes.c_void_p(begin), ctypes.c_size_t(size)):
            return ""
        return "Windows refuses; free some memory, or lower the context (-c)"

    return lock_range
