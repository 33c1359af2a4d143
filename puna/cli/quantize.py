"""`puna quantize`: a model in another type."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from puna.cli import options
from puna.cli.copies import add_input, add_output, checked_output, writing
from puna.cli.parser import Parser, checked, whole
from puna.cli.report import Bars, say
from puna.cli.text import columns, printable
from puna.edit.mixes import MIXES, find_mix
from puna.errors import RequestError
from puna.settings import Settings
from puna.units import human

if TYPE_CHECKING:
    from puna.edit.choice import Options
    from puna.edit.quantize import Plan, Step
    from puna.quants import QuantType

__all__ = ["build", "run"]


def build(prog: str) -> Parser:
    """The command's options."""
    about = (
        "Write a model in another type. TYPE is llama-quantize's name of a mix: the types of the tensors are"
    )
    parser = Parser(prog, f"{about} the ones that llama-quantize gives them.")
    parser.usage = f"{prog} IN OUT TYPE [THREADS] [options]"
    add_input(parser)
    add_output(parser)
    parser.add_argument("type", metavar="TYPE", help=f"one of {', '.join(MIXES)}; or its number")
    parser.add_argument("nthreads", nargs="?", type=whole(1, 1024), metavar="THREADS", help="the same as -t")
    parser.add_argument(
        "--dry-run", action="store_true", help="show each tensor's type and size, write nothing"
    )
    parser.add_argument(
        "-t", "--threads", type=whole(1, 1024), metavar="N", help="threads (default: one a core)"
    )
    group = parser.add_argument_group("types")
    group.add_argument("--pure", action="store_true", help="give all matrices TYPE's own type, without a mix")
    group.add_argument(
        "--tensor-type",
        action="append",
        default=[],
        type=checked(tensor_type),
        metavar="REGEX=TYPE",
        help="the type of tensors whose name matches, such as ffn_down=Q6_K; may be given several times, and the "
        "first match counts",
    )
    group.add_argument(
        "--output-tensor-type",
        type=checked(quant_type),
        metavar="TYPE",
        help="the type of output.weight; where a model has none, of token_embd.weight, which is the output there",
    )
    group.add_argument(
        "--token-embedding-type",
        type=checked(quant_type),
        metavar="TYPE",
        help="the type of token_embd.weight",
    )
    group.add_argument("--leave-output-tensor", action="store_true", help="leave output.weight as it is")
    group.add_argument(
        "--allow-requantize",
        action="store_true",
        help="take tensors that are quantised already, which loses more than starting from 16 or 32 bits",
    )
    group.add_argument(
        "--imatrix", metavar="FILE", help="an importance matrix, in either of llama.cpp's formats"
    )
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    from puna.edit.importance import read_weights
    from puna.edit.quantize import check_plan, make_plan, run_plan
    from puna.gguf.output import check_room

    arguments = build(prog).parse(argv)
    mix, requantize, threads = find_mix(arguments.type), arguments.allow_requantize, threads_of(arguments)
    asked = options_of(arguments)
    weights = read_weights(arguments.imatrix) if arguments.imatrix else None
    with options.open_file(arguments) as file:
        sources = [*file.paths, *([weights.path] if weights else [])]
        checked_output(arguments.out, sources, arguments.dry_run)
        plan = make_plan(file, mix, asked, weights)
        for note in plan.notes:
            say(f"note: {printable(note)}")
        if arguments.dry_run:
            print("\n".join(plan_lines(plan)))
            with suppress_as_note():
                check_plan(file, plan, requantize=requantize)
                check_room(Path(arguments.out), plan.new_bytes)
            return 0
        with writing(arguments.out), Bars() as progress:
            run_plan(file, arguments.out, plan, requantize=requantize, threads=threads, progress=progress)
    say(total_line(plan))
    return 0


def quant_type(text: str) -> QuantType:
    """A type that Puna can make. Raises RequestError."""
    from puna.edit.quantize import check_quantizer
    from puna.quants import by_name
    from puna.quants.quantizers import QUANTIZERS

    try:
        quant = by_name(text)
    except RequestError as error:
        near = get_close_matches(text.upper(), QUANTIZERS) or QUANTIZERS
        raise RequestError(error.what, fix=f"use one of {', '.join(near)}") from None
    check_quantizer(quant, quant.name)
    return quant


def tensor_type(text: str) -> tuple[re.Pattern[str], QuantType]:
    """REGEX=TYPE. Raises ValueError or RequestError."""
    pattern, equals, name = text.rpartition("=")
    if not equals or not pattern or not name:
        raise ValueError(f"{text!r} is not REGEX=TYPE")
    try:
        return re.compile(pattern, re.IGNORECASE), quant_type(name)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None


def options_of(arguments: argparse.Namespace) -> Options:
    """What is asked for beside the mix."""
    from puna.edit.choice import Options

    return Options(
        pure=arguments.pure,
        tensor_types=tuple(arguments.tensor_type),
        output=arguments.output_tensor_type,
        embedding=arguments.token_embedding_type,
        leave_output=arguments.leave_output_tensor,
    )


def threads_of(arguments: argparse.Namespace) -> int:
    """Raises RequestError where two numbers are given."""
    from puna.backends.cpu.threads import default_threads

    if arguments.threads and arguments.nthreads:
        raise RequestError("threads are given twice", where="-t", fix=f"leave out {arguments.nthreads}")
    return arguments.threads or arguments.nthreads or Settings.from_environment().threads or default_threads()


@contextmanager
def suppress_as_note() -> Iterator[None]:
    """In a dry run, what stands in the way is said, and no error."""
    try:
        yield
    except RequestError as error:
        say(f"note: without --dry-run this is an error: {error}")


def plan_lines(plan: Plan) -> list[str]:
    """A line a tensor, then the totals."""
    rows = [step_row(step) for step in plan.steps]
    return [*columns(rows, "<<<<>>"), total_line(plan)]


def step_row(step: Step) -> tuple[str, ...]:
    tensor = step.tensor
    now = f"-> {step.quant.name}" if step.is_changed else ""
    size = human(step.nbytes) if step.is_changed else ""
    shape = "x".join(map(str, tensor.shape))
    return printable(tensor.name), shape, tensor.quant.name, now, human(tensor.nbytes), size


def total_line(plan: Plan) -> str:
    """Bytes and bits per weight of all tensors, before and after."""
    sizes = [
        f"{human(n)} ({8 * n / max(plan.elements, 1):.2f} bits per weight)"
        for n in (plan.old_bytes, plan.new_bytes)
    ]
    return f"{plan.mix.name}: {sizes[0]} -> {sizes[1]}"
