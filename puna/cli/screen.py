"""Generated text on standard output, as it comes."""

from __future__ import annotations

import sys

from puna.cli.text import shown

__all__ = ["Screen"]

YELLOW, GREEN, RESET = "\x1b[33m", "\x1b[1;32m", "\x1b[0m"


class Screen:
    """Standard output. A terminal gets control characters as escapes; a pipe or file gets the text itself.

    color: "on", "off", or "auto" for a terminal only.
    """

    def __init__(self, color: str) -> None:
        self.terminal = sys.stdout.isatty()
        self.color = color == "on" or (color == "auto" and self.terminal)
        self.column = 0  # 0 at the start of a line

    def prompt(self, text: str) -> None:
        """Text that was given, not generated."""
        self.paint(YELLOW)
        self.write(text)
        self.paint(RESET)

    def paint(self, code: str) -> None:
        if self.color:
            sys.stdout.write(code)

    def write(self, text: str) -> None:
        if text:
            self.column = 0 if text.endswith("\n") else 1
        sys.stdout.write(shown(text) if self.terminal else text)
        sys.stdout.flush()

    def end_line(self) -> None:
        """So that what follows starts on a line of its own."""
        if self.column:
            self.write("\n")
