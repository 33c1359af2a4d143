"""`puna kernels`: the machine code that the cpu backend keeps or makes, down to its instructions."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from puna.cli import arch_files, options
from puna.cli.parser import Parser, checked
from puna.cli.text import columns, printable
from puna.errors import BackendError, RequestError
from puna.settings import Settings

if TYPE_CHECKING:
    from puna.backends.cpu.codecache import CodeCache
    from puna.backends.cpu.compiler import Compiler, Spec

__all__ = ["build", "run"]

WIDTH = 76  # characters of a name in a list, before it is cut
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
# A block of code: a label, in LLVM's language or in assembly, and the lines up to the next.
BLOCK = re.compile(r"^(?P<label>[\w.$]+):.*\n(?:(?!\S+:|}).*\n)*", re.MULTILINE)
# The whole line of a jump to a label.
JUMP = r"^\s+(?:j\w+|b[.\w]*|[ct]bn?z)\s.*?{}(?![\w.$]).*"


def build(prog: str) -> Parser:
    """The command's options."""
    what = (
        "List the kernels of the cpu backend: those in the code cache, or those that a model needs, which are"
    )
    parser = Parser(prog, f"{what} compiled for that. Or show what a kernel became.")
    options.add_name(parser)
    arch_files.add_option(parser)
    parser.usage = f"{prog} [MODEL] [options]"
    show = parser.add_argument_group("look into kernels (a model's, or the matrix kernels of all types)")
    code = "print LLVM's code of the kernels with NAME in their name"
    show.add_argument("--ir", type=checked(filled), metavar="NAME", help=code)
    show.add_argument("--asm", type=checked(filled), metavar="NAME", help="print their assembly")
    show.add_argument(
        "--loops",
        action="store_true",
        help="print only the innermost loops: blocks that jump to their beginning",
    )
    other = "as written for another processor of this family, by LLVM's name of it"
    show.add_argument("--cpu", type=checked(filled), metavar="CPU", help=other)
    cache = parser.add_argument_group("code cache")
    cache.add_argument("--clear", action="store_true", help="delete all kernels that are kept")
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    from puna.backends.cpu.codecache import CodeCache, default_folder

    arguments, cache = build(prog).parse(argv), CodeCache(default_folder())
    refuse_what_does_not_go_together(arguments)
    if arguments.clear:
        print(cleared(cache))
    elif arguments.ir or arguments.asm:
        print("\n\n".join(shown(arguments, cache)))
    elif has_model(arguments):
        print("\n".join(needed_lines(needs(arguments, cache))))
    else:
        print("\n".join(cache_lines(cache)))
    return 0


def filled(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def has_model(arguments: argparse.Namespace) -> bool:
    """Whether a model is named, if only by an empty name, which is refused where it is opened."""
    return arguments.name is not None or arguments.model is not None


def refuse_what_does_not_go_together(arguments: argparse.Namespace) -> None:
    """Raises RequestError for options of which one would have no effect."""
    if arguments.ir and arguments.asm:
        raise RequestError("both --ir and --asm are given", fix="give one of them")
    for flag, given in (("--loops", arguments.loops), ("--cpu", arguments.cpu)):
        if given and not (arguments.ir or arguments.asm):
            raise RequestError("nothing is shown", where=flag, fix="add --asm NAME")
    if arguments.arch_file and not has_model(arguments):
        raise RequestError("no model is named", where="--arch-file", fix="name one")
    if arguments.clear and (has_model(arguments) or arguments.ir or arguments.asm):
        what = "it deletes all kernels, and goes with no model and no other option"
        raise RequestError(what, where="--clear", fix="give it alone")


def cleared(cache: CodeCache) -> str:
    try:
        count = cache.clear()
    except OSError as error:
        raise BackendError(f"cannot delete kernels: {error.strerror}", where=str(cache.folder)) from None
    return f"deleted {count} files in {printable(str(cache.folder))}"


def cache_lines(cache: CodeCache) -> list[str]:
    """A line a kernel, the newest last."""
    from puna.units import human

    entries, now = sorted(cache.entries(), key=lambda entry: entry.made), datetime.now(timezone.utc)
    rows = [
        (entry.key[:8], cut(entry.name), printable(entry.cpu), human(entry.bytes), age(now - entry.made))
        for entry in entries
    ]
    total = human(sum(entry.bytes for entry in entries))
    first = f"{len(rows)} kernels, {total} of machine code, in {printable(str(cache.folder))}"
    return [first, *columns(rows, "<<<>>")] if rows else [first]


def needs(arguments: argparse.Namespace, cache: CodeCache) -> Mapping[Spec, float | None]:
    """The kernels that a model needs, compiled, and the seconds that took."""
    from puna.backends.cpu.backend import CPUBackend
    from puna.backends.cpu.needs import compile_needs
    from puna.backends.cpu.target import Target

    settings = Settings.from_environment()
    backend = CPUBackend(Target.host(settings.cpu), cache, settings.threads)
    arch_files.run_files(arguments)
    with options.open_file(arguments) as file:
        compile_needs(file, backend)
    return backend.compiler.seconds


def needed_lines(seconds: Mapping[Spec, float | None]) -> list[str]:
    rows = [(cut(spec.name), took(time)) for spec, time in seconds.items()]
    made = [time for time in seconds.values() if time is not None]
    total = f"{len(rows)} kernels, {len(made)} of them compiled now in {sum(made):.1f} s"
    return [*columns(rows, "<>"), total]


def shown(arguments: argparse.Namespace, cache: CodeCache) -> Iterator[str]:
    """The code of each kernel that is asked for, under a line that says what it is. Raises RequestError for none."""
    from llvmlite.binding import llvm_version_info

    from puna.backends.cpu.compiler import Compiler
    from puna.backends.cpu.needs import matrix_kernels
    from puna.backends.cpu.target import Target

    flag, wanted = ("--ir", arguments.ir) if arguments.ir else ("--asm", arguments.asm)
    settings, of_model = Settings.from_environment(), has_model(arguments)
    target = Target.named(arguments.cpu, "--cpu") if arguments.cpu else Target.host(settings.cpu)
    compiler = Compiler(target, None)
    specs = list(needs(arguments, cache)) if of_model else matrix_kernels(compiler.target)
    found = [spec for spec in specs if wanted in spec.name]
    if not found:
        fix = "leave out the option to list them" if of_model else "name a model that needs it"
        raise RequestError(f"no kernel has {wanted!r} in its name", where=flag, fix=fix)
    version = ".".join(map(str, llvm_version_info))
    mark = "#" if arguments.asm else ";"
    for spec in found:
        text = SHOW[flag](compiler, spec)
        title = f"{mark} {spec.name} for {target.cpu} ({target.triple}) by LLVM {version}"
        yield f"{title}\n{loops(text) if arguments.loops else text.strip()}"


SHOW: Mapping[str, Callable[[Compiler, Spec], str]] = {
    "--ir": lambda compiler, spec: compiler.intermediate(spec),
    "--asm": lambda compiler, spec: compiler.assembly(spec),
}


def loops(text: str) -> str:
    """The blocks with a jump to their own beginning, each up to its last: the innermost loops."""
    found = []
    for block in BLOCK.finditer(text):
        jumps = list(re.finditer(JUMP.format(re.escape(block["label"])), block[0], re.MULTILINE))
        if jumps:
            found.append(block[0][: jumps[-1].end()])
    return "\n\n".join(found) or "no loops"


def cut(name: str) -> str:
    return printable(name if len(name) <= WIDTH else f"{name[: WIDTH - 3]}...")


def took(seconds: float | None) -> str:
    return "from the cache" if seconds is None else f"{1e3 * seconds:.0f} ms"


def age(passed: timedelta) -> str:
    seconds = max(0, int(passed.total_seconds()))
    return next((f"{seconds // size} {unit}" for unit, size in UNITS if seconds >= size), "0 s")
