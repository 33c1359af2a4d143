"""Engines to compare. Each can be asked to

    prefill   compute `tokens` at once after `depth`                                   -> seconds
    decode    compute `tokens` one by one after `depth`                                -> seconds
    together  compute `tokens` steps of `sequences` sequences that hold `depth` each   -> seconds
    memory    say the most memory it has held                                          -> bytes
    version   say what it is
    first     in a new process: load, and continue a prompt by one token               -> seconds

and answers None to what it cannot do. Needs the standard library alone: llama.cpp's interpreter imports it too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = [
    "Engine",
    "LlamaBench",
    "Worker",
    "answer",
    "bench_names",
    "llama_worker",
    "puna_worker",
    "token_ids",
]

HERE = Path(__file__).resolve().parent
PROMPT = "Once upon a time"
REST = 0.3  # seconds between two engines, in which the threads of the one before go to sleep


def token_ids(count: int, vocabulary: int, start: int = 0) -> list[int]:
    """The ids that all engines are fed, from the start-th on: the same in each, and none beyond the vocabulary."""
    return [(100 + i % 1000) % vocabulary for i in range(start, start + count)]


class Engine:
    """name, version: for the table and what stands below it."""

    name: str
    version: str

    def ask(self, do: str, **options: Any) -> Any:
        raise NotImplementedError

    def first(self) -> float | None:
        return None

    def close(self) -> None:
        pass


class Worker(Engine):
    """A process that keeps a model loaded and takes requests over a pipe; it waits, idle, while others compute.

    command: what starts it.  first_command: what prints one token and ends.
    """

    def __init__(self, name: str, command: list[str], first_command: list[str]) -> None:
        self.name, self.first_command = name, first_command
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
            )
        except OSError as error:
            self.errors.close()
            raise SystemExit(f"error: {command[0]}: {error.strerror}") from None
        self.version = str(self.ask("version"))

    def ask(self, do: str, **options: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        time.sleep(REST)
        try:
            self.process.stdin.write(json.dumps({"do": do, **options}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            raise SystemExit(f"error: {self.name} ended while asked to {do}\n{self.last_words()}")
        return json.loads(answer)

    def last_words(self) -> str:
        """The last lines of a process's errors, which has ended."""
        self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().decode("utf-8", "replace").splitlines()
        self.close()
        return "\n".join(lines[-5:])

    def first(self) -> float | None:
        """Seconds from the command's start to its first output."""
        time.sleep(REST)
        begin = time.perf_counter()
        with subprocess.Popen(
            self.first_command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            taken = time.perf_counter() - begin
            process.stdout.read()
        if process.returncode:
            raise SystemExit(f"error: {' '.join(self.first_command)}: status {process.returncode}")
        return taken

    def close(self) -> None:
        """End the process, if it has not ended."""
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # what could not be written to a process that has ended
                if pipe:
                    pipe.close()
        self.process.wait()
        self.errors.close()


def puna_worker(model: str, threads: int, n_ctx: int) -> Worker:
    """This Puna."""
    run = [sys.executable, "-m", "puna", "run", model, "-p", PROMPT, "-n", "1", "--temp", "0"]
    run += ["--no-display-prompt", "--backend", "cpu", "-t", str(threads)]
    return Worker(
        "Puna", [sys.executable, str(HERE / "engine_puna.py"), model, str(threads), str(n_ctx)], run
    )


def llama_worker(python: str, model: str, threads: int, n_ctx: int) -> Worker:
    """The llama.cpp that an interpreter's llama_cpp brings."""
    script = [python, str(HERE / "engine_llama.py")]
    first = [*script, "--first", model, str(threads), PROMPT]
    return Worker("llama.cpp", [*script, model, str(threads), str(n_ctx)], first)


def bench_names(programs: Sequence[str], taken: Collection[str] = ()) -> list[str]:
    """A name for each llama-bench, none twice: its folder's, or the whole path where that is another's too."""
    folders = [Path(program).resolve().parent.name for program in programs]
    return [
        folder
        if folder and folders.count(folder) == 1 and folder not in taken
        else str(Path(program).resolve())
        for folder, program in zip(folders, programs, strict=True)
    ]


class LlamaBench(Engine):
    """A llama-bench program, which loads the model anew for each request: outside of what it times."""

    def __init__(self, name: str, program: str, model: str, threads: int) -> None:
        self.name, self.program, self.model, self.threads = name, program, model, threads
        self.version = f"{self.name} ({program})"

    def ask(self, do: str, **options: Any) -> Any:
        sizes = {"prefill": ("-p", "-n"), "decode": ("-n", "-p")}
        if do not in sizes:
            return None
        (given, other), count = sizes[do], int(options["tokens"])
        command = [self.program, "-m", self.model, "-t", str(self.threads), "-r", "1", "-o", "json"]
        command += [given, str(count), other, "0"]
        if options["depth"]:
            command += ["-d", str(options["depth"])]
        time.sleep(REST)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise SystemExit(f"error: {self.program}: {error.strerror}") from None
        if done.returncode:
            raise SystemExit(f"error: {' '.join(command)}: status {done.returncode}\n{done.stderr[-500:]}")
        return count / float(json.loads(done.stdout)[0]["avg_ts"])


def peak_memory() -> int | None:
    """The most memory that this process has had resident, in bytes; None where the system does not say."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent held before the process began
        lines = status.read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def answer(engine: Any, version: str) -> None:
    """The life of an engine's process: a JSON request a line comes in, its answer goes out."""
    requests: Mapping[str, Callable[..., Any]] = {
        "prefill": engine.prefill,
        "decode": engine.decode,
        "together": engine.together,
        "memory": peak_memory,
        "version": lambda: version,
    }
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(requests[request.pop("do")](**request)), flush=True)  # noqa: T201 - the pipe
