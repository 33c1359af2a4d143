"""What memory can still be taken: limits of control groups, beside what the machine has."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from puna.backends import free

GIB = 1 << 30


def write_files(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def v2(most: str, used: int, files: int = 0) -> dict[str, str]:
    stat = f"anon 5\ninactive_file {files}\nactive_file 7\n"
    return {"memory.max": f"{most}\n", "memory.current": f"{used}\n", "memory.stat": stat}


def v1(most: int, used: int, files: int = 0) -> dict[str, str]:
    stat = f"inactive_file 3\ntotal_inactive_file {files}\n"
    return {
        "memory.limit_in_bytes": f"{most}\n",
        "memory.usage_in_bytes": f"{used}\n",
        "memory.stat": stat,
    }


def machine(root: Path, cgroup: str, groups: dict[str, dict[str, str]]) -> Path:
    """A tree as the kernel shows it. cgroup: /proc/self/cgroup.  groups: folder under /sys/fs/cgroup -> its files."""
    write_files(root / "proc" / "self", {"cgroup": cgroup})
    for name, files in groups.items():
        write_files(root / "sys" / "fs" / "cgroup" / name, files)
    return root


def test_version_2_takes_the_tightest_group(tmp_path: Path) -> None:
    """A group's limit counts for those in it; pages of files that the system gives up are left to take."""
    groups = {"": {}, "a": v2(str(4 * GIB), 3 * GIB, GIB), "a/b": v2("max", GIB)}
    assert free.allowed(machine(tmp_path, "0::/a/b\n", groups)) == 2 * GIB


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """The limit of the mounted root counts, whatever the path is called outside."""
    root = machine(tmp_path, "0::/../../docker/1234\n", {"": v2(str(2 * GIB), GIB)})
    assert free.allowed(root) == GIB


def test_version_1_has_its_own_files(tmp_path: Path) -> None:
    """The memory controller is mounted apart; a huge number is no limit, other controllers are not asked."""
    lines = "9:name=systemd:/x\n4:cpu,memory:/a/b\n0::/\n"
    groups = {
        "memory": v1(1 << 62, GIB),
        "memory/a": v1(2 * GIB, GIB, GIB // 2),
        "memory/a/b": v1(1 << 62, GIB),
    }
    assert free.allowed(machine(tmp_path, lines, groups)) == GIB + GIB // 2


@pytest.mark.parametrize("cgroup", ["", "0::/gone\n", "nonsense\n", "4:memory:/none\n"])
def test_no_limit_is_none(cgroup: str, tmp_path: Path) -> None:
    """Without groups, or with none that says a limit, the machine's own memory is all that counts."""
    assert free.allowed(machine(tmp_path, cgroup, {})) is None
    assert free.allowed(tmp_path / "elsewhere") is None


def test_a_group_that_is_full_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More may be used than the limit for a moment: that is nothing left, not less; and free memory is the lesser."""
    root = machine(tmp_path, "0::/a\n", {"a": v2(str(GIB), 2 * GIB)})
    assert free.allowed(root) == 0
    monkeypatch.setattr(free, "allowed", lambda: 1000)
    assert free.free_memory() == 1000


@pytest.mark.skipif(
    sys.platform != "linux", reason="what a process has mapped is told in other ways elsewhere"
)
@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `ulimit` allows beside what is taken is free; no limit is none, and one that is reached leaves nothing."""
    import resource

    limits = dict.fromkeys((resource.RLIMIT_AS, resource.RLIMIT_DATA), resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limits[what], resource.RLIM_INFINITY))
    assert free.own_limits() is None
    taken = getattr(psutil.Process().memory_info(), free.LIMITS[name])
    limits[getattr(resource, name)] = taken + GIB
    left = free.own_limits()
    assert left is not None
    assert abs(left - GIB) < 64 << 20
    assert free.free_memory() <= left + (64 << 20)
    limits[getattr(resource, name)] = 4096
    assert free.free_memory() == 0


def test_a_system_without_such_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no such module, nothing limits a process."""
    monkeypatch.setitem(sys.modules, "resource", None)
    assert free.own_limits() is None
