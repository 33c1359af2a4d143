"""`puna split`: a model cut into several files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from puna.cli import options
from puna.cli.copies import add_input, checked_output, clear, named, writing
from puna.cli.parser import Parser, checked, whole
from puna.cli.report import Bars, counted, say
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
    parser.add_argument(
        "prefix", metavar="PREFIX", type=named, help="the path of the files, up to their number"
    )
    parser.add_argument(
        "--max-size",
        "--split-max-size",
        type=checked(size_of),
        metavar="SIZE",
        help="most bytes of a file, such as 2G or 1.5GB (powers of 1000), or 2GiB (of 1024)",
    )
    parser.add_argument(
        "--max-tensors", "--split-max-tensors", type=whole(1), metavar="N", help="most tensors of a file"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the files, write nothing")
    return parser


class Size(NamedTuple):
    """nbytes, and whether it was given in powers of 1000."""

    nbytes: int
    decimal: bool


def size_of(text: str) -> Size:
    from puna.edit.parts import parse_size

    return Size(parse_size(text), not text.lower().endswith("ib"))


def decimal(count: float) -> str:
    """Bytes in powers of 1000, as sizes are given: 1500 -> "1.5 kB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    from puna.edit.parts import cut, part_paths_of, split, stem_of

    arguments = build(prog).parse(argv)
    if (arguments.max_size is None) == (arguments.max_tensors is None):
        what = "say how large a file may be" if arguments.max_size is None else "give one limit"
        raise RequestError(what, where=prog, fix="add --max-size 2G, or --max-tensors N")
    with options.open_file(arguments) as file:
        most = arguments.max_size
        parts = cut(file, max_bytes=most and most.nbytes, max_tensors=arguments.max_tensors)
        prefix = stem_of(arguments.prefix)
        if prefix != arguments.prefix:
            say(f"note: the number at the end of PREFIX is left out: {printable(prefix)}")
        paths = part_paths_of(prefix, len(parts))
        for path in paths:
            checked_output(path, file.paths, dry=True)
        if not arguments.dry_run:
            clear(Path(prefix).resolve())
            with writing(paths[0]), Bars() as progress:
                split(file, prefix, parts, progress=progress)
    shown = decimal if most and most.decimal else human
    rows = [
        (printable(str(path)), counted(len(part.tensors), "tensor"), shown(part.nbytes))
        for path, part in zip(paths, parts, strict=True)
    ]
    print("\n".join(columns(rows, "<>>")))
    return 0
