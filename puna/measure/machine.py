"""What a person should know of the machine to read a measurement."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from puna.engine import Model

__all__ = ["busy_note", "processor", "threads_of"]

BUSY, LOOK = 0.1, 0.3  # share of the processors beyond which a note is due; seconds that it is watched


def processor() -> str:
    """The processor's name, as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def threads_of(model: Model) -> int:
    """Compute threads of a loaded model; where its backend leaves them to a library, those of the machine."""
    return getattr(model.backend, "threads", None) or os.cpu_count() or 1


def busy_note() -> str | None:
    """A line for people where other programs are computing right now, which makes every measurement worse."""
    import psutil

    share = psutil.cpu_percent(LOOK) / 100
    if share <= BUSY:
        return None
    return f"other programs use {100 * share:.0f}% of the processors: speeds will be too low, and vary"
