"""How much main memory can still be taken: what the machine has left, as limits of a container or process allow."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["allowed", "free_memory", "own_limits"]

ROOT = Path("/")
# Files of a control group of version 2 and of version 1: the limit, what is used, and of that the files' pages that
# the system gives up before it refuses anything (kernel documentation, cgroup-v2.rst and cgroup-v1/memory.rst).
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


# Limits of a process, and what psutil calls what each counts. macOS sets no bounds to what is mapped.
LIMITS: Mapping[str, str] = {
    "RLIMIT_DATA": "data",
    **({} if sys.platform == "darwin" else {"RLIMIT_AS": "vms"}),
}


def free_memory() -> int:
    """Bytes of main memory that this process can still take without swapping."""
    import psutil

    left = int(psutil.virtual_memory().available)
    return min(limit for limit in (left, allowed(), own_limits()) if limit is not None)


def own_limits() -> int | None:
    """Bytes that this process may still take (ulimit -v and -d), None where nothing limits it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    import psutil

    used, left = psutil.Process().memory_info(), []
    for name, counts in LIMITS.items():
        most, now = resource.getrlimit(getattr(resource, name))[0], getattr(used, counts, None)
        if most != resource.RLIM_INFINITY and now is not None:
            left.append(max(0, most - now))
    return min(left, default=None)


def allowed(root: Path = ROOT) -> int | None:
    """Bytes that the control groups of this process still allow, None where none sets a limit.

    root: the folder that proc and sys are mounted in.
    """
    return min((left for group in groups(root) if (left := room(*group)) is not None), default=None)


def groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The folders of the groups that this process is in, each with those around it, and the names of their files."""
    mounts = root / "sys" / "fs" / "cgroup"
    with suppress(OSError, ValueError):
        for line in (root / "proc" / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top, names = (mounts / "memory", V1) if controllers else (mounts, V2)
            folder = top / path.lstrip("/")
            yield top, names  # in a container the path may be that outside of it
            while folder not in {top, root} and top in folder.parents:
                yield folder, names
                folder = folder.parent


def room(folder: Path, names: tuple[str, str, str]) -> int | None:
    """Bytes left in a group, None where it sets no limit."""
    limit, used, reclaimable = names
    try:
        most = int((folder / limit).read_text())  # "max" is none
        now = int((folder / used).read_text())
    except (OSError, ValueError):
        return None
    given_up = 0
    with suppress(OSError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, count = line.partition(" ")
            given_up = int(count) if name == reclaimable else given_up
    return None if most >= 1 << 60 else max(0, most - now + given_up)  # no limit is a huge one in version 1
