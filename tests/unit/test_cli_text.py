"""Text in and out: escapes, decoding, and messages of several lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from puna.cli import text
from puna.cli.lines import message
from puna.errors import RequestError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (r"a\nb\tc\rd", "a\nb\tc\rd"),
        (r"\'\"\\n", "'\"\\n"),
        (r"\x41\x7A", "Az"),
        (r"\xe2\x82\xac", "€"),
        (r"\xff", "\ufffd"),
        (r"\xg1\q\0", r"\xg1\q\0"),
        ("end\\", "end\\"),
    ],
)
def test_escapes_are_those_of_llama_cpp(given: str, expected: str) -> None:
    r"""\n \r \t \' \" \\ and \xHH stand for a character; any other backslash for itself."""
    assert text.unescape(given) == expected


def test_text_of_a_file_cannot_steer_a_terminal() -> None:
    """printable leaves no control character, and keeps only those it is told to."""
    hostile = "a\x1b[31m\x00\u202e\udcff\nb"
    assert text.printable(hostile) == r"a\x1b[31m\x00\u202e\udcff\nb"
    assert text.printable("a\n\tb\r", keep="\n\t") == "a\n\tb\\r"


def test_generated_text_keeps_joined_emoji() -> None:
    """shown escapes control characters only: joiners, new lines and no-break spaces stay."""
    family = "👨\u200d👩\u200d👧\u00a0\n\t"
    assert text.shown(family + "\x1b]0;x\x07\x9b") == family + r"\x1b]0;x\x07\x9b"


def test_files_are_utf8(tmp_path: Path) -> None:
    """A file's text comes as it is; a wrong byte, a folder and no file are errors that name the file."""
    file = tmp_path / "a.txt"
    file.write_bytes("é\r\n".encode())
    assert text.from_file(str(file)) == "é\r\n"
    file.write_bytes(b"ab\xff")
    with pytest.raises(RequestError, match=r"a\.txt: byte 2 \(0xff\) is not UTF-8; convert"):
        text.from_file(str(file))
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(RequestError, match=f"{path.name}: cannot read the file"):
            text.from_file(str(path))


def reader(lines: list[str]) -> Callable[[str], str]:
    rest: Iterator[str] = iter(lines)
    return lambda prompt: next(rest)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["hello"], "hello"),
        (["one\\", "two\\", "three"], "one\ntwo\nthree"),
        (["'''", "a", "  b", "'''"], "a\n  b"),
        (["'''a", "b'''"], "a\nb"),
        (["'''one line'''"], "one line"),
        (['"""', "it's '''quoted'''", '"""'], "it's '''quoted'''"),
        (["'''", "/exit", "'''"], "/exit"),
        (["''''''"], ""),
    ],
)
def test_messages_of_several_lines(lines: list[str], expected: str) -> None:
    """A backslash at the end continues a line; three quotes open and close a block."""
    typed = message(reader(lines))
    assert typed.text == expected
    assert typed.quoted == lines[0].startswith(("'''", '"""'))
