"""`puna split`: a model cut into several files."""

from __future__ import annotations

from collections.abc import Sequence

from puna.cli import options
from puna.cli.copies import add_input
from puna.cli.parser import Parser, checked, whole
from puna.cli.report import Bars, counted
from puna.cli.text import columns, printable
from puna.errors import RequestError
from puna.units import human

__all__ = ["build", "run"]


def build(prog: str) -> Parser:
    """The command's options."""
    about = "Cut a model into files PREFIX-00001-of-00003.gguf and so on, as llama-gguf-split names them."
    parser = Parser(prog, f"{about} Each command of Puna takes any of them for the whole model.")
    parser.usage = f"{prog} IN PREFIX --max-size SIZE | --max-tensors N"
    add_input(parser)
    parser.add_argument("prefix", metavar="PREFIX", help="the path of the files, up to their number")
    parser.add_argument(
        "--max-size",
        "--split-max-size",
        type=checked(size),
        metavar="SIZE",
        help="most bytes of a file, such as 2G or 500M (powers of 1000)",
    )
    parser.add_argument(
        "--max-tensors", "--split-max-tensors", type=whole(1), metavar="N", help="most tensors of a file"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the files, write nothing")
    return parser


def size(text: str) -> int:
    from puna.edit.parts import parse_size

    return parse_size(text)


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    from puna.edit.parts import cut, part_paths_of, split

    arguments = build(prog).parse(argv)
    if (arguments.max_size is None) == (arguments.max_tensors is None):
        what = "say how large a file may be" if arguments.max_size is None else "give one limit"
        raise RequestError(what, where=prog, fix="add --max-size 2G, or --max-tensors N")
    with options.open_file(arguments) as file:
        parts = cut(file, max_bytes=arguments.max_size, max_tensors=arguments.max_tensors)
        paths = part_paths_of(arguments.prefix, len(parts))
        if not arguments.dry_run:
            with Bars() as progress:
                split(file, arguments.prefix, parts, progress=progress)
    rows = [
        (printable(str(path)), counted(len(part.tensors), "tensor"), human(part.nbytes))
        for path, part in zip(paths, parts, strict=True)
    ]
    print("\n".join(columns(rows, "<>>")))
    return 0
