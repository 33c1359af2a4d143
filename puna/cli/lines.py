"""What a person types: lines, and messages of several lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from puna.cli.text import lines_of_stdin
from puna.errors import RequestError

__all__ = ["Typed", "line_reader", "message"]

QUOTES = ("'''", '"""')


def line_reader() -> Callable[[str], str]:
    """A function from a prompt to the next line; it raises EOFError at the end.

    At a terminal it edits lines, with a history; from a pipe or file it shows no prompt.
    """
    if sys.stdin.isatty():
        with suppress(ImportError):  # Windows has none
            import readline  # noqa: F401
        return terminal_line
    lines = lines_of_stdin()

    def piped_line(prompt: str) -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    return piped_line


def terminal_line(prompt: str) -> str:
    if not sys.stdout.isatty():  # it is for the replies
        sys.stderr.write(prompt)
        sys.stderr.flush()
        prompt = ""
    try:
        return input(prompt)
    except UnicodeDecodeError:
        raise RequestError("what was typed is not UTF-8", fix="set the terminal to UTF-8") from None


class Typed(NamedTuple):
    """A message. quoted: it stood in quotes, so that it is no command."""

    text: str
    quoted: bool


def message(read: Callable[[str], str]) -> Typed:
    """The next message. A backslash at a line's end continues it; three quotes open and close a block.

    Raises EOFError where there is no more, and RequestError for quotes that are not closed.
    """
    line = read("> ")
    start = line.lstrip()
    quote = next((quote for quote in QUOTES if start.startswith(quote)), None)
    if quote:
        return Typed(block(read, start[len(quote) :], quote), True)
    parts = []
    while line.endswith("\\"):
        parts.append(line[:-1])
        try:
            line = read(". ")
        except EOFError:
            line = ""
    return Typed("\n".join([*parts, line]), False)


def block(read: Callable[[str], str], line: str, quote: str) -> str:
    parts = []
    while not line.rstrip().endswith(quote):
        parts.append(line)
        try:
            line = read(". ")
        except EOFError:
            raise RequestError(f"the text has no end; close it with {quote}", where=quote) from None
    last = line.rstrip().removesuffix(quote)
    lines = [*parts, last]
    if len(lines) > 1 and not lines[0].strip():
        del lines[0]
    if len(lines) > 1 and not last.strip():
        del lines[-1]
    return "\n".join(lines)
