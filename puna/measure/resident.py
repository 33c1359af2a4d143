"""How much memory a process has, as the system counts it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["mapped", "resident"]

SELF = Path("/proc/self")


def resident() -> int:
    """Bytes of this process that are in memory: its own, shared libraries, and mapped parts of files."""
    rollup = SELF / "smaps_rollup"
    if rollup.exists():  # exact, where the shorter ways count in batches
        return rss(rollup.read_text())
    import psutil

    return int(psutil.Process().memory_info().rss)


def mapped(path: str | Path) -> int:
    """Of these, bytes of a file that is mapped; 0 where the system does not say."""
    smaps, name = SELF / "smaps", os.path.realpath(path)
    if not smaps.exists():
        return 0
    found, inside = 0, False
    for line in smaps.read_text().splitlines():
        if (
            "-" in line.split(" ", 1)[0]
        ):  # the head of an area: addresses, rights, offset, device, inode, path
            inside = line.endswith(f" {name}")
        elif inside:
            found += rss(line)
    return found


def rss(text: str) -> int:
    """The sum of the lines that give resident bytes."""
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Rss:"))
