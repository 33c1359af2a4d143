"""Compiling through the cache: sound entries spare it, all others are compiled again, and nothing else happens."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import llvmlite.binding
import numpy as np
import platformdirs
import pytest
from tiny_model import write_tiny

import puna
from puna.backends.cpu.codecache import CodeCache
from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.lang import Kernel
from puna.backends.cpu.target import Target

ROOT = Path(puna.__file__).parents[1]


def twice(k: Kernel, *, by: int = 2) -> None:
    args, *_ = k.args
    args.store(args.load("i64") * by)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Spec]:
    """The kernels that were compiled since the test began."""
    seen: list[Spec] = []
    optimised = Compiler.optimised

    def counting(self: Compiler, spec: Spec, *rest: object) -> object:
        seen.append(spec)
        return optimised(self, spec, *rest)

    monkeypatch.setattr(Compiler, "optimised", counting)
    return seen


def use(folder: Path, spec: Spec | None = None) -> None:
    """A new compiler on a folder makes or finds a kernel, and the kernel works."""
    import ctypes

    spec = spec or Spec.of(twice)
    compiler, number = Compiler(Target.host(), CodeCache(folder)), np.array([21], np.int64)
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    native(compiler.addresses_of([spec])[spec])(number.ctypes.data, 0, 0, 0)
    assert number[0] == 42


def entry(folder: Path) -> Path:
    (found,) = folder.glob("*.o")
    return found


def cut(at: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(at * len(data))]


def flip(at: float) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        place = min(int(at * len(data)), len(data) - 1)
        return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]

    return change


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "head only": lambda data: data[:44],
    "cut in half": cut(0.5),
    "cut at the end": lambda data: data[:-1],
    "hash": lambda data: flip(20 / len(data))(data),
    "middle": flip(0.5),
    "last byte": flip(1),
    "text": lambda data: b"puna code\n" * 100,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_compiled_again(damage: str, tmp_path: Path, compiled: list[Spec]) -> None:
    """Whatever happened to a file, it is not run, and a sound one takes its place."""
    use(tmp_path)
    sound = entry(tmp_path).read_bytes()
    entry(tmp_path).write_bytes(DAMAGE[damage](sound))
    use(tmp_path)
    assert len(compiled) == 2
    use(tmp_path)
    assert len(compiled) == 2
    assert entry(tmp_path).read_bytes() == sound


def test_a_sound_entry_under_another_name(tmp_path: Path) -> None:
    """The code of one kernel is not taken for that of another."""
    use(tmp_path)
    other = tmp_path / f"{'0' * 40}.o"
    entry(tmp_path).rename(other)
    assert CodeCache(tmp_path).load(other.stem) is None


def test_a_folder_in_place_of_an_entry(tmp_path: Path, compiled: list[Spec]) -> None:
    """What cannot be read or replaced costs compiling, and leaves nothing half written."""
    use(tmp_path)
    path = entry(tmp_path)
    path.unlink()
    (path / "sub").mkdir(parents=True)
    use(tmp_path)
    assert len(compiled) == 2
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_an_unwritable_folder_only_costs_time(tmp_path: Path, compiled: list[Spec]) -> None:
    """A place where no folder can be, or a folder that may not be written to: kernels work all the same."""
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        use(folder)
    assert (tmp_path / "file").read_text() == "in the way"
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    use(closed)
    assert len(compiled) == 3
    closed.chmod(0o700)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that cannot be moved into its place is taken away again."""

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    use(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="this system has no permissions by mode")
def test_entries_are_their_owners_alone(tmp_path: Path) -> None:
    """Even where files are everybody's by default, the folder is 0700 and an entry 0600."""
    before = os.umask(0)
    try:
        use(tmp_path / "code")
    finally:
        os.umask(before)
    assert (tmp_path / "code").stat().st_mode & 0o777 == 0o700
    assert entry(tmp_path / "code").stat().st_mode & 0o777 == 0o600


PROCESS = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_cpu_compile_cache import use
print("ready", flush=True)
input()
use(Path(sys.argv[1]))
"""


def test_two_processes_compile_at_once(tmp_path: Path, compiled: list[Spec]) -> None:
    """Both get their kernel, and what they leave is one sound entry."""
    folder = tmp_path / "code"
    here = Path(__file__).parent
    command = [sys.executable, "-c", PROCESS, str(folder), str(ROOT), str(here), str(here.parent)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
    use(folder)
    assert compiled == []
    assert len(list(folder.iterdir())) == 1


def test_the_key_is_of_all_that_decides_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another parameter, processor, feature or LLVM gives another key; the same of all gives the same."""
    target = Target.host()

    def key(of: Target = target, **static: int) -> str:
        return Compiler(of, None).key(Spec.of(twice, **static))

    keys = [key(), key(by=2), key(by=3), key(replace(target, cpu="x")), key(replace(target, features="+x"))]
    keys.append(key(replace(target, triple="riscv64-linux")))
    monkeypatch.setattr(llvmlite.binding, "llvm_version_info", (99, 0, 0))
    keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key() == keys[-1]


@pytest.mark.parametrize(
    "changed",
    [
        "backends/cpu/kernels/rows.py",
        "backends/cpu/verbs.py",
        "quants/k.py",
        "plan/kv.py",
    ],
)
def test_a_change_of_source_changes_the_key(changed: str, tmp_path: Path) -> None:
    """Source that ends up in kernels is part of the key: after an update, nothing old is run."""
    shutil.copytree(ROOT / "puna", tmp_path / "puna", ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "from puna.backends.cpu.compiler import Compiler, Spec\n"
        "from puna.backends.cpu.target import Target\n"
        "from puna.backends.cpu.kernels import attend\n"
        "print(Compiler(Target.host(), None).key(Spec.of(attend)))"
    )

    def key() -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert result.stderr == ""
        return result.stdout

    before = key()
    with (tmp_path / "puna" / changed).open("a") as file:
        file.write("# changed\n")
    assert key() != before


def test_the_second_loading_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[Spec]
) -> None:
    """A model that was loaded and used once starts without a compiler the next time, with the same logits."""
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *args, **options: tmp_path / "cache")
    path, ids = write_tiny(tmp_path / "m.gguf", quant="Q8_0"), list(range(40))
    want = puna.load(path, backend="cpu", threads=2).logits(ids)
    first = len(compiled)
    assert 0 < first == len(list((tmp_path / "cache" / "code").glob("*.o")))
    np.testing.assert_array_equal(puna.load(path, backend="cpu", threads=2).logits(ids), want)
    assert len(compiled) == first
