"""The command line: a table of subcommands, each imported when it is called."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import TextIO

from puna import __version__
from puna.cli.status import BUG, INTERRUPTED, PIPE, USER
from puna.errors import PunaError, RequestError

__all__ = ["COMMANDS", "main"]

# Name -> what it does. `puna.cli.<name>` has `run(prog, argv) -> exit status`.
COMMANDS: Mapping[str, str] = {
    "run": "continue a text, or talk where no text is given",
    "chat": "talk with a model",
    "embed": "texts as vectors, or their scores by a classifier",
    "bench": "how fast a model runs, and where the time goes",
    "perplexity": "how well a model predicts a text, and how far it is from another model",
    "verify": "whether a backend computes what the reference backend computes",
    "imatrix": "which columns of the weights matter, for quantisers",
    "plan": "the memory that a model would take, before it is loaded",
    "inspect": "what a GGUF file holds: metadata, tensors, sizes",
    "convert": "write a model of the Hugging Face hub as a GGUF file",
    "quantize": "write a model in another type",
    "split": "cut a model into several files",
    "merge": "write a model of several files as one",
    "diff": "how two models differ",
    "set": "write a copy with another value of a metadata key",
    "kernels": "the cpu backend's machine code: what is kept, what a model needs",
    "tokenize": "a text as a model's token ids, and back",
    "pull": "fetch a model by name",
    "list": "models that are here, and models that can be fetched",
}
DEBUG = "--debug"
ENDS = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP


class Ended(BaseException):
    """A signal asked the process to end. It is no Exception: what is begun is cleaned up, and nothing else happens."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status. `argv` is without the program's name."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with ending():
            return answer(words)
    except Ended as signalled:
        return signalled.status


@contextmanager
def ending() -> Iterator[None]:
    """Signals to end raise Ended, as Ctrl-C raises KeyboardInterrupt; those that are ignored, as by nohup, stay so."""
    numbers = [getattr(signal, name) for name in ENDS if hasattr(signal, name)]
    mine = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
        raise Ended(number)

    try:
        for number in mine:
            signal.signal(number, end)
    except ValueError:  # this is not the main thread, which alone takes signals
        mine = []
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def answer(words: list[str]) -> int:
    """The exit status of a command line."""
    debug = words[:1] == [DEBUG]
    try:
        open_streams()
        words = words[1:] if debug else words
        debug = debug or asks_for_debug(words)
        status = dispatch(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has gone
        return PIPE
    except Exception as error:
        status, line = explained(error)
        show(error, line, debug)
    finally:
        drop_output()
    return status


def open_streams() -> None:
    """A closed standard input is an empty one; what would go to a closed standard error goes nowhere.

    Raises RequestError where standard output is closed.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stdout is None:
        raise RequestError("it is closed", where="standard output", fix="lead it to a file, or to /dev/null")


def drop_output() -> None:
    """What cannot be written now must not be written at exit either: Python would complain of it there."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError):
            if not flushed(stream):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def flushed(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True


def explained(error: Exception) -> tuple[int, str]:
    """The exit status and the line for an error."""
    if isinstance(error, PunaError):
        return USER, str(error)
    if isinstance(error, MemoryError):
        return USER, "out of memory; lower the context (-c), or take a smaller model"
    reason = " ".join(str(error).split())
    if isinstance(error, OSError):
        what = error.filename or "standard input or output"
        return USER, f"cannot read or write {what}: {error.strerror or reason}; check where it leads"
    advice = "this is a bug in Puna, please report it with the output of --debug"
    return BUG, f"unexpected {type(error).__name__}: {reason}; {advice}"


def show(error: Exception, line: str, debug: bool) -> None:
    with suppress(OSError):  # standard error may be what cannot be written
        if debug:
            traceback.print_exception(error)
        print(f"error: {line}", file=sys.stderr)


def asks_for_debug(words: Sequence[str]) -> bool:
    """Whether --debug is one of the command's flags: in the place of a value it is none."""
    if DEBUG not in words:
        return False
    named = words[0] in COMMANDS
    parser = import_module(f"puna.cli.{words[0] if named else 'run'}").build("puna")
    return bool(parser.debugs(words[int(named) :]))


def dispatch(words: Sequence[str]) -> int:
    """A subcommand by its name; without one, llama.cpp's habit: `-m model.gguf -p text` runs."""
    first = words[0] if words else "--help"
    if first in {"-h", "--help"}:
        print(usage())
        return 0
    if first == "--version":
        print(f"puna {__version__}")
        return 0
    utf8()
    if first in COMMANDS:
        return command(first, f"puna {first}", words[1:])
    if first.startswith("-"):
        return command("run", "puna", words)
    raise unknown(first)


def command(name: str, prog: str, words: Sequence[str]) -> int:
    try:
        status: int = import_module(f"puna.cli.{name}").run(prog, words)
    except SystemExit:  # argparse has printed its help
        return 0
    return status


def unknown(word: str) -> RequestError:
    import difflib

    near = difflib.get_close_matches(word, COMMANDS, n=1)
    fix = f"did you mean puna {near[0]}?" if near else f"to run a model, write puna run {word}"
    return RequestError(f"there is no command {word!r}", where="puna", fix=fix)


def utf8() -> None:
    """Text goes out as UTF-8, whatever the terminal says it takes."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(encoding="utf-8", errors="replace")


def usage() -> str:
    rows = "\n".join(f"  {name:<12}{text}" for name, text in COMMANDS.items())
    return (
        "usage: puna COMMAND [options]\n"
        "       puna -m MODEL -p TEXT [options]    as llama.cpp has it: puna run without its name\n\n"
        "Runs GGUF language models. MODEL is a file, or a name such as smollm2:135m.\n\n"
        f"commands:\n{rows}\n\n"
        "  puna COMMAND --help shows a command's options, puna --version the version;\n"
        "  --debug shows where in Puna an error came from."
    )
