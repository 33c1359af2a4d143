"""What the commands that write files share: where a file may be, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from puna.cli.parser import Parser, checked
from puna.cli.report import counted, say
from puna.cli.text import printable

__all__ = [
    "add_input",
    "add_no_mmap",
    "add_output",
    "checked_output",
    "clear",
    "named",
    "parts_of",
    "writing",
]


def add_input(parser: Parser, metavar: str = "IN") -> None:
    """The model to read, as `options.open_file` takes it."""
    parser.set_defaults(model=None)
    parser.add_argument("name", metavar=metavar, help="a GGUF file, or a name such as smollm2:135m")
    add_no_mmap(parser)


def add_no_mmap(parser: Parser) -> None:
    """How the model is read."""
    parser.add_argument(
        "--no-mmap",
        action="store_true",
        help="read a tensor at a time instead of mapping the file into memory",
    )


def add_output(parser: Parser) -> None:
    """The file to write."""
    parser.add_argument(
        "out", metavar="OUT", type=named, help="the file to write; one that is there is replaced at the end"
    )


def named_path(text: str) -> str:
    """A path that was given. Raises ValueError for an empty one, and for what stands for standard output elsewhere."""
    if not text:
        raise ValueError("an empty path names no file; name the file to write")
    if text == "-":
        raise ValueError("nothing is written to standard output; name a file, or ./- for one of that name")
    return text


named = checked(named_path)


def checked_output(out: str | Path, sources: Sequence[Path], dry: bool = False) -> Path:
    """Before the work: the path to write to, and what broken-off runs left of it deleted. Raises RequestError.

    sources: files that are read.  dry: nothing is written or deleted.
    """
    from puna.gguf.output import free_target

    path = free_target(out, sources)
    if not dry:
        clear(path)
    return path


def clear(path: Path) -> None:
    """Delete what broken-off runs left of a file that is about to be written, and say so."""
    from puna.gguf.output import clear_left

    if gone := clear_left(path):
        these = counted(len(gone), "part")
        say(
            f"note: deleted {these} of {printable(path.name)} that broken-off runs left: {printable(gone[0])}"
        )


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """While a file is written: Ctrl-C is answered with what became of it."""
    try:
        yield
    except KeyboardInterrupt:
        say(
            "interrupted; "
            + (f"{printable(str(path))} is as it was" if Path(path).exists() else "nothing was written")
        )
        raise


def parts_of(path: Path) -> list[Path]:
    """The files of the model that has this one, as far as they are there."""
    from puna.gguf.split import part_name, split_name

    found = split_name(path.name)
    if found is None:
        return [path]
    stem, _, count = found
    return [path, *(path.with_name(part_name(stem, number, count)) for number in range(1, count + 1))]
