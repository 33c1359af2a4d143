"""`puna set`: a copy of a model with another value of a metadata key."""

from __future__ import annotations

from collections.abc import Sequence

from puna.cli import options
from puna.cli.copies import add_input, add_output, checked_output, writing
from puna.cli.inspect import value_text
from puna.cli.parser import Parser
from puna.cli.report import Bars, say
from puna.cli.text import from_file, printable

__all__ = ["build", "run"]


def build(prog: str) -> Parser:
    """The command's options."""
    about = (
        "Write a copy of a model with another value of a metadata key, which keeps its type without --type."
    )
    parser = Parser(prog, f"{about} Lists are JSON: [1, 2]. A value that begins with a dash goes after --.")
    parser.usage = f"{prog} KEY VALUE IN OUT [options]"
    parser.add_argument("key", metavar="KEY", help="such as llama.context_length; puna inspect lists them")
    parser.add_argument("value", metavar="VALUE", help="the value; - reads it from standard input")
    add_input(parser)
    add_output(parser)
    parser.add_argument(
        "--type",
        metavar="TYPE",
        help="the type, which a new key needs, and another key gets: string, bool, uint32, float32 and so on; string[] "
        "is a list",
    )
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    from puna.edit.keys import set_key, value_of

    arguments = build(prog).parse(argv)
    key = arguments.key
    text = from_file("-").removesuffix("\n") if arguments.value == "-" else arguments.value
    with options.open_file(arguments) as file:
        value = value_of(file.metadata, key, text, arguments.type)
        held = file.metadata.typed(key) if key in file.metadata else None
        if held is not None and (held.type, held.is_array) != (value.type, value.is_array):
            say(f"note: the type of {printable(key)} changes (--type), and programs may ask for the old one")
        before = "nothing" if held is None else value_text(held)
        checked_output(arguments.out, file.paths)
        if len(file.paths) > 1:
            say(f"note: the copy is one file, where this model has {len(file.paths)}")
        with writing(arguments.out), Bars() as progress:
            set_key(file, arguments.out, key, value, progress=progress)
    print(f"{printable(key)}: {before} -> {value_text(value)}")
    return 0
