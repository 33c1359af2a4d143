"""What the commands that write a model file from a model file share."""

from __future__ import annotations

from puna.cli.parser import Parser

__all__ = ["add_input", "add_output"]


def add_input(parser: Parser, metavar: str = "IN") -> None:
    """The model to read, as `options.open_file` takes it."""
    parser.set_defaults(model=None)
    parser.add_argument("name", metavar=metavar, help="a GGUF file, or a name such as smollm2:135m")


def add_output(parser: Parser) -> None:
    """The file to write."""
    parser.add_argument(
        "out", metavar="OUT", help="the file to write; one that is there is replaced at the end"
    )
