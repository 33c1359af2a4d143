"""`puna convert`: a Hugging Face folder to a GGUF file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.cli.copies import clear, named, writing
from puna.cli.parser import Parser, checked, one_of
from puna.cli.report import Bars, counted, say
from puna.cli.text import printable
from puna.errors import RequestError
from puna.units import human

if TYPE_CHECKING:
    from puna.convert import Conversion

__all__ = ["build", "run"]

OUTTYPES = ("f32", "f16", "bf16", "q8_0", "auto")


def build(prog: str) -> Parser:
    """The command's options."""
    about = "Convert a model as the Hugging Face hub has it to a GGUF file, and print the file's path."
    check = "Everything is read and checked first; the file is there when all of it is written."
    parser = Parser(prog, f"{about} {check}")
    parser.usage = f"{prog} FOLDER OUT [options]"
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        type=checked(folder),
        help="a folder with config.json, *.safetensors and the tokenizer's files",
    )
    parser.add_argument("out", metavar="OUT", type=named, help="the file to write, or a folder for it")
    parser.add_argument(
        "--outtype",
        type=one_of(*OUTTYPES),
        default="auto",
        metavar="TYPE",
        help="type of the matrices: f32, f16, bf16, q8_0, or auto: bf16 where they are that, "
        "else f16 (default auto); vectors and norms stay f32",
    )
    parser.add_argument("--vocab-only", action="store_true", help="leave the tensors out")
    parser.add_argument("--dry-run", action="store_true", help="check everything, and write nothing")
    parser.add_argument(
        "--pre", metavar="NAME", help="the pre-tokenizer, by GGUF's name, where it is not recognised"
    )
    parser.add_argument("--name", metavar="TEXT", help="the model's name (default: the folder's)")
    return parser


def folder(text: str) -> str:
    if not text:
        raise ValueError("an empty path names no folder; write . for this one")
    return text


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    arguments = build(prog).parse(argv)
    from puna.convert import prepare
    from puna.gguf.output import check_room

    found = prepare(
        arguments.folder,
        arguments.out,
        outtype=arguments.outtype,
        vocab_only=arguments.vocab_only,
        pre=arguments.pre,
        name=arguments.name,
    )
    try:
        for line in lines(found):
            say(line)
        if arguments.dry_run:
            try:
                check_room(found.path, found.nbytes)
            except RequestError as error:
                say(f"note: without --dry-run this is an error: {error}")
            say(f"nothing is written (--dry-run): {printable(str(found.path))}")
            return 0
        clear(found.path.resolve())
        with writing(found.path), Bars() as progress:
            odd = found.write(progress)
        for name in odd:
            say(f"note: tensor {printable(name)} has values that are no numbers, or infinite")
    finally:
        found.close()
    print(printable(str(found.path)))
    return 0


def lines(found: Conversion) -> list[str]:
    """What a file will hold, in words."""
    types = Counter(tensor.quant.name for tensor in found.tensors)
    kinds = ", ".join(f"{count} {name}" for name, count in types.most_common())
    held = (
        f"{counted(len(found.tensors), 'tensor')} ({kinds}), {human(found.nbytes)}" if types else "no tensors"
    )
    notes = [f"note: {printable(note)}" for note in found.notes]
    return [f"{found.architecture}: {held}", f"vocabulary: {found.vocabulary}", *notes]
