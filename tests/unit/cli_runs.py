"""Run the command line in this process, with streams of its own, on the reference backend."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tiny_model import ALPHABET, write_tiny

from puna.cli.main import main

BACKEND = {"PUNA_BACKEND": "reference"}  # these are no tests of a backend
ENDLESS = {**ALPHABET, "z": "a"}


@dataclass
class Result:
    """status: the exit status.  out, err: what came on standard output and standard error."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error, which is one line and comes last."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        assert self.err.splitlines()[-1] == lines[0]
        return lines[0].removeprefix("error: ")


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def stream(terminal: bool, content: bytes = b"", **options: str) -> io.TextIOWrapper:
    kind = Terminal if terminal else io.TextIOWrapper
    return kind(io.BytesIO(content), **{"encoding": "utf-8", **options})


@contextlib.contextmanager
def streams(stdin: bytes, tty: str, encoding: str) -> Iterator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    out, err = stream("out" in tty, encoding=encoding), stream("err" in tty, encoding=encoding)
    with (
        mock.patch.object(sys, "stdin", stream("in" in tty.split(), stdin)),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
    ):
        yield out, err


def puna(
    *words: object, stdin: bytes = b"", tty: str = "", encoding: str = "utf-8", typed: Sequence[object] = ()
) -> Result:
    """Run `puna WORDS`.

    tty: which of "in", "out" and "err" are terminals.  encoding: of the output streams before Puna sets its own.
    typed: what a person at the terminal types, a line each, or an exception that reading raises.
    """
    with (
        mock.patch.dict(os.environ, BACKEND),
        streams(stdin, tty, encoding) as (out, err),
        mock.patch("builtins.input", side_effect=[*typed, EOFError]),
    ):
        status = main([str(word) for word in words])
        out.flush()
        err.flush()
    texts = (stream.buffer.getvalue().decode("utf-8") for stream in (out, err))  # type: ignore[attr-defined]
    return Result(status, *texts)


def alphabet(folder: Path, **options: object) -> Path:
    """A model that says the alphabet: `xyz` after `w`, all of it after a new line, then ends."""
    return write_tiny(folder / "alphabet.gguf", **{"follow": ALPHABET, **options})  # type: ignore[arg-type]
