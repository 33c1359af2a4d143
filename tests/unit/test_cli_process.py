"""The command line as a process of its own: start-up, pipes and signals."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_runs import BACKEND, ENDLESS, alphabet

WAIT = 60  # seconds that no process here should need
LIMIT = 0.2  # seconds of its own that a light command may take


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "puna", *map(str, words)]


def start(*words: object, **options: object) -> subprocess.Popen[bytes]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command(*words), **{**pipes, **options})  # type: ignore[call-overload,no-any-return]


def seconds(argv: list[str]) -> float:
    """The best of three."""
    best = float(WAIT)
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run(argv, check=True, capture_output=True, timeout=WAIT)
        best = min(best, time.perf_counter() - started)
    return best


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in BACKEND.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("code", ["import puna", "from puna.cli.main import main; main(['--help'])"])
def test_start_up_is_quick_and_light(code: str) -> None:
    """`import puna` and `puna --help` take under 0.2 s beyond Python's own start, and import nothing heavy."""
    empty = seconds([sys.executable, "-c", "pass"])
    assert seconds([sys.executable, "-c", code]) - empty < LIMIT
    heavy = ("numpy", "rich", "jinja2", "tokenizers", "huggingface_hub", "argparse", "puna.engine")
    shown = f"{code}; import sys; print('loaded', [m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", shown], check=True, capture_output=True, timeout=WAIT)
    assert done.stdout.splitlines()[-1] == b"loaded []"


def test_the_module_is_the_command(tmp_path: Path) -> None:
    """`python -m puna` runs a model: text on standard output, the rest on standard error, status 0."""
    done = subprocess.run(
        command("run", alphabet(tmp_path), "-p", "from w"), check=True, capture_output=True, timeout=WAIT
    )
    assert done.stdout.split() == [b"from", b"wxyz"]
    assert b"tokens/s" in done.stderr


def test_errors_end_with_status_2(tmp_path: Path) -> None:
    """A user's error is the only line, and the status is 2."""
    done = subprocess.run(
        command("run", tmp_path / "none.gguf", "-p", "a"), capture_output=True, timeout=WAIT
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, b"", 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["list", "--json"], ["list", "nonsense"]])
def test_full_disks_are_said_once(words: list[str]) -> None:
    """Output that cannot be written is one line and status 2, and Python adds nothing at exit."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command(*words), stdout=full, stderr=subprocess.PIPE, timeout=WAIT)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        done = subprocess.run(command(*words), stdout=full, stderr=full, timeout=WAIT)
        assert done.returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="streams are closed as a POSIX shell does it")
@pytest.mark.parametrize(("closed", "status"), [("<&-", 2), (">&-", 2), ("2>&-", 0), ("<&- >&- 2>&-", 2)])
def test_closed_streams_of_a_process(tmp_path: Path, closed: str, status: int) -> None:
    """Whichever streams are closed, the status is right and there is no traceback."""
    words = ["run", alphabet(tmp_path)] + ([] if "<" in closed else ["-p", "w"])
    line = f"{shlex.join(command(*words))} {closed}"
    done = subprocess.run(line, shell=True, capture_output=True, timeout=WAIT)
    assert done.returncode == status, done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout == (b"wxyz\n" if status == 0 else b"")


def test_text_comes_while_it_is_generated(tmp_path: Path) -> None:
    """Each piece is written at once, also into a pipe."""
    model = alphabet(tmp_path, follow=ENDLESS, n_ctx=1 << 20)
    with start("run", model, "-p", "a", "-c", 1 << 17) as process:
        assert process.stdout
        assert process.stdout.read(40) == b"abcdefghijklmnopqrstuvwxyzabcdefghijklmn"
        assert process.poll() is None
        process.kill()


def test_broken_pipe_ends_quietly(tmp_path: Path) -> None:
    """A reader that leaves ends the run without a traceback."""
    model = alphabet(tmp_path, follow=ENDLESS, n_ctx=1 << 20)
    with start("run", model, "-p", "a", "-c", 1 << 17) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.read(10)
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(WAIT) == 141
    assert b"Traceback" not in errors
    assert b"error" not in errors
    assert b"BrokenPipe" not in errors


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for a single process")
def test_interrupt_ends_with_a_summary(tmp_path: Path) -> None:
    """Ctrl-C stops the text, the summary follows, and the status is 130."""
    model = alphabet(tmp_path, follow=ENDLESS, n_ctx=1 << 20)
    with start("run", model, "-p", "a", "-c", 1 << 17) as process:
        assert process.stdout
        process.stdout.read(40)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 130
    assert out.endswith(b"\n")
    assert b"generated" in errors
    assert b"Traceback" not in errors


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signals_to_end_clean_up(tmp_path: Path, name: str) -> None:
    """What was begun is deleted, nothing is said, and the status is the shell's of the signal."""
    number = getattr(signal, name)
    code = (
        "import sys; from puna.cli import main; from puna.gguf import writer\n"
        "writer.tensor_pieces = lambda *_: iter(lambda: print('begun', flush=True) or input(), 0)\n"
        "sys.exit(main.main(sys.argv[1:]))"
    )
    argv = [
        sys.executable,
        "-c",
        code,
        "set",
        "general.name",
        "x",
        str(alphabet(tmp_path)),
        str(tmp_path / "out"),
    ]
    with subprocess.Popen(argv, **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)) as process:
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        assert len(list(tmp_path.glob(".out.*.part"))) == 1
        process.send_signal(number)
        _, errors = process.communicate(timeout=WAIT)
    assert (process.returncode, errors) == (128 + number, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["alphabet.gguf"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_conversation_at_a_terminal(tmp_path: Path) -> None:
    """At a terminal there is a prompt, Ctrl-C stops a reply and comes back to it, and again there ends it."""
    model = alphabet(tmp_path, follow=ENDLESS, n_ctx=1 << 20)
    master, terminal = os.openpty()
    with start("chat", model, "-c", 1 << 17, stdin=terminal, stdout=terminal) as process:
        os.close(terminal)
        read_until(master, b"> ")
        os.write(master, b"hi\n")
        read_until(master, b"abcdefgh")
        process.send_signal(signal.SIGINT)
        read_until(master, b"> ")
        interrupt_until_it_ends(process)
        assert process.returncode == 130
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()
    os.close(master)


def interrupt_until_it_ends(process: subprocess.Popen[bytes]) -> None:
    """Again and again: readline misses a signal that comes just before it waits for a key."""
    for _ in range(WAIT):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
            return


def read_until(master: int, wanted: bytes) -> None:
    seen, deadline = b"", time.monotonic() + WAIT
    while wanted not in seen:
        assert time.monotonic() < deadline
        seen = seen[-len(wanted) :] + os.read(master, 64)
