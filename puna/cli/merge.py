"""`puna merge`: a model of several files as one."""

from __future__ import annotations

from collections.abc import Sequence

from puna.cli import options
from puna.cli.copies import add_input, add_output, checked_output, writing
from puna.cli.parser import Parser
from puna.cli.report import Bars, counted, say
from puna.cli.text import printable
from puna.units import human

__all__ = ["build", "run"]


def build(prog: str) -> Parser:
    """The command's options."""
    parser = Parser(prog, "Write a model of several files as one. The files stay as they are.")
    parser.usage = f"{prog} FIRST OUT"
    add_input(parser, "FIRST")
    add_output(parser)
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    from puna.edit.parts import merge

    arguments = build(prog).parse(argv)
    with options.open_file(arguments) as file:
        checked_output(arguments.out, file.paths)
        with writing(arguments.out), Bars() as progress:
            merge(file, arguments.out, progress=progress)
    files, tensors = counted(len(file.paths), "file"), counted(len(file.tensors), "tensor")
    say(f"{printable(arguments.out)}: {files}, {tensors}, {human(file.size)}")
    return 0
