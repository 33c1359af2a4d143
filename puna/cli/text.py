"""Text from the command line, files and standard input; text for a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from puna.errors import RequestError
from puna.units import human

__all__ = ["columns", "from_file", "from_stdin", "lines_of_stdin", "printable", "reason", "shown", "unescape"]

MOST = 64 << 20  # bytes of a text
STDIN = "standard input"
ESCAPE = re.compile(r"(?:\\x[0-9a-fA-F]{2})+|\\[nrt'\"\\]")
ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def unescape(text: str) -> str:
    r"""\n, \r, \t, \', \", \\ and \xHH as what they stand for; other backslashes stay. The rule of llama.cpp."""

    def one(match: re.Match[str]) -> str:
        code = match[0]
        if code[1] in ESCAPED:
            return ESCAPED[code[1]]
        return bytes.fromhex(code.replace("\\x", "")).decode("utf-8", "replace")

    return ESCAPE.sub(one, text)


def from_file(path: str) -> str:
    """A file's text, `-` being standard input. Raises RequestError where it is no UTF-8 text."""
    if path == "-":
        return from_stdin()
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MOST + 1)
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read the file: {reason(error)}", where=path) from None
    return decoded(raw, path)


def reason(error: OSError | ValueError) -> str:
    """What the system says, without the number and the path."""
    return getattr(error, "strerror", None) or str(error)


def from_stdin() -> str:
    """All of standard input."""
    return decoded(read_stdin(MOST + 1), STDIN)


def read_stdin(most: int, line: bool = False) -> bytes:
    """So many bytes of standard input at most: all there are, or a line."""
    pipe = sys.stdin.buffer
    try:
        return pipe.readline(most) if line else pipe.read(most)
    except OSError as error:  # it is a folder, or open for writing only
        raise RequestError(f"cannot be read: {reason(error)}", where=STDIN, fix="use -p or -f") from None


def lines_of_stdin() -> Iterator[str]:
    """Standard input line by line, without the line ends."""
    while raw := read_stdin(MOST + 1, line=True):
        yield decoded(raw, STDIN).rstrip("\r\n")


def decoded(raw: bytes, where: str) -> str:
    """Bytes as the text they are. Raises RequestError for more than a text can have, or no UTF-8."""
    if len(raw) > MOST:
        raise RequestError(f"more than {human(MOST)} of text", where=where, fix="give less")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte {error.start} (0x{raw[error.start]:02x}) is not UTF-8"
        raise RequestError(what, where=where, fix="convert the text to UTF-8") from None


def printable(text: str, keep: str = "") -> str:
    """Text out of a file, with all that could steer a terminal written as escapes; `keep` stays."""
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def shown(text: str) -> str:
    """Generated text for a terminal: control characters as escapes, but joiners and the like stay."""
    return CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def columns(rows: Sequence[tuple[str, ...]], sides: str) -> list[str]:
    """Rows in columns as wide as their widest entry; sides: `<` or `>` for each."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (zip(row, sides, widths, strict=True) for row in rows)
    return ["  " + "  ".join(f"{c:{side}{width}}" for c, side, width in line).rstrip() for line in lines]
