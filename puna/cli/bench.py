"""`puna bench`: speed in llama-bench's terms, and where the time goes."""

from __future__ import annotations

import argparse
import gc
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import product
from typing import TYPE_CHECKING, Any

from puna.cli import arch_files
from puna.cli.parser import MOST, Parser, checked, one_of, whole
from puna.cli.report import Bars, say
from puna.cli.text import printable
from puna.errors import BackendError, RequestError

if TYPE_CHECKING:
    from puna.engine import Model
    from puna.measure import Case, Peaks
    from puna.measure.report import Outcome
    from puna.planning import Prepared

__all__ = ["build", "run"]

RANGE = re.compile(r"(\d+)(?:-(\d+)(?:([+*])(\d+))?)?")
LONGEST = 10_000  # values that one range may have
REPEATS = 5
# Options that a profile has no use for.
TESTS_ONLY = {"n_gen": "-n", "n_prompt_gen": "-pg", "repetitions": "-r", "no_warmup": "--no-warmup"}


def build(prog: str) -> Parser:
    """The command's options."""
    about = (
        "Measure prompt and generation speed, as llama-bench does, and how near it is to the machine's peak."
    )
    parser = Parser(prog, f"{about} Lists are 1,2,4 or ranges: 1-4, 0-4096+1024, 1-16*2.")
    parser.usage = f"{prog} MODEL... [options]"
    parser.add_argument("name", nargs="*", metavar="MODEL", help="GGUF files, or names such as smollm2:135m")
    add_list(parser, "-m", "--model", "MODEL", words, [], "the same; may be a list, and given several times")
    tests = parser.add_argument_group("tests")
    add_list(tests, "-p", "--n-prompt", "N", whole_list(0), [512], "tokens of a prompt; 0 for none")
    add_list(tests, "-n", "--n-gen", "N", whole_list(0), [128], "tokens to generate; 0 for none")
    add_list(
        tests, "-pg", "--n-prompt-gen", "PP,TG", pair, [], "a prompt and then a generation, timed together"
    )
    add_list(
        tests, "-d", "--n-depth", "N", whole_list(0), [0], "tokens that the context holds before each test"
    )
    tests.add_argument(
        "-r", "--repetitions", type=whole(1), metavar="N", help=f"times a test is run (default {REPEATS})"
    )
    tests.add_argument("--no-warmup", action="store_true", help="do not run each test once before timing it")
    tests.add_argument(
        "--profile",
        action="store_true",
        help="instead, time each operation of a prompt's step and of a decode step, at each -p and -d",
    )
    model = parser.add_argument_group("model")
    add_list(
        model, "-b", "--batch-size", "N", whole_list(1), [2048], "most tokens given to the model at once"
    )
    add_list(model, "-ub", "--ubatch-size", "N", whole_list(1), [512], "most tokens computed in one step")
    add_list(model, "-ctk", "--cache-type-k", "TYPE", words, [None], "types of the keys in the KV cache")
    add_list(model, "-ctv", "--cache-type-v", "TYPE", words, [None], "types of the values in the KV cache")
    add_list(model, "-t", "--threads", "N", whole_list(1), [None], "compute threads")
    add_list(model, None, "--backend", "NAME", words, ["auto"], "what computes: backends by name, or auto")
    arch_files.add_option(model)
    parser.add_argument(
        "-o",
        "--output",
        type=one_of("md", "json", "jsonl", "csv"),
        default="md",
        metavar="FORMAT",
        help="md, json, jsonl or csv (default md)",
    )
    return parser


def add_list(
    group: Any,
    short: str | None,
    flag: str,
    metavar: str,
    parse: Callable[[str], list[Any]],
    default: list[Any],
    text: str,
) -> None:
    """An option that takes a list, and may be given several times."""
    known = [str(value) for value in default if value is not None]
    ends = f" (default {','.join(known)})" if known else " (default: the backend's)" if default else ""
    group.add_argument(
        *([short] if short else []),
        flag,
        type=checked(parse),
        action=Extend,
        default=default,
        metavar=metavar,
        help=text + ends,
    )


class Extend(argparse.Action):
    """The values of all the times an option is given; the first takes the default's place."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        so_far = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if so_far is self.default else so_far + values)


def words(text: str) -> list[str]:
    found = [word for word in text.split(",") if word]
    if not found:
        raise ValueError("the list is empty")
    return found


def whole_list(least: int) -> Callable[[str], list[int]]:
    """A list of whole numbers and ranges, as llama-bench has them."""

    def parse(text: str) -> list[int]:
        return [number for word in words(text) for number in numbers(word, least)]

    return parse


def numbers(word: str, least: int) -> list[int]:
    match = RANGE.fullmatch(word)
    if not match:
        raise ValueError(f"{word!r} is no whole number and no range such as 1-4, 0-64+16 or 1-16*2")
    first, last, step = (int(match[i] or default) for i, default in ((1, 0), (2, match[1]), (4, 1)))
    if not least <= first <= last <= MOST:
        raise ValueError(f"{word!r} is not between {least} and {MOST}, or runs backwards")
    found = [first]
    while (following := found[-1] * step if match[3] == "*" else found[-1] + step) <= last and last > first:
        if following <= found[-1] or len(found) >= LONGEST:
            raise ValueError(f"{word!r} has no end, or more than {LONGEST} values")
        found.append(following)
    return found


def pair(text: str) -> list[tuple[int, int]]:
    parts = [numbers(word, 0) for word in words(text)]
    if len(parts) != 2 or any(len(part) != 1 for part in parts) or not any(parts[0] + parts[1]):
        raise ValueError(f"{text!r} is not a prompt and a generation, such as 512,128")
    return [(parts[0][0], parts[1][0])]


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    parser = build(prog)
    arguments = parser.parse(argv)
    names = [*arguments.name, *arguments.model]
    if not names:
        raise RequestError("no model is named", fix="name one, as in: puna bench smollm2:135m")
    arch_files.run_files(arguments)
    if arguments.profile:
        refuse_what_a_profile_has_not(parser, arguments)
        return profile(arguments, names)
    cases = cases_of(arguments)
    if not cases:
        raise RequestError("no test is asked for", fix="give -p, -n or -pg a number above 0")
    from puna.measure.report import FORMATS

    check_all(names, arguments, positions(cases), any(case.generate or case.depth for case in cases))
    peaks = peaks_here()
    form = FORMATS[arguments.output](columns(arguments), peaks)
    show(form.begin())
    try:
        for name, config in product(names, configs(arguments)):
            for outcome in outcomes(arguments, name, config, cases, peaks):
                show(form.row(outcome))
    finally:  # what was measured stays readable
        show(form.end())
    return 0


def check_all(names: Sequence[str], arguments: argparse.Namespace, n_ctx: int, goes_on: bool) -> None:
    """Plan all models in all ways to load them, from the files' headers, so that nothing is refused later on.

    goes_on: whether texts are gone on with, as a model whose tokens see those after them cannot.
    Raises PunaError for what cannot be loaded, or not be run so, or not be profiled where that is asked for.
    """
    from puna import store
    from puna.gguf import GGUFFile
    from puna.measure import refuse_other_backends
    from puna.planning import prepare
    from puna.settings import Settings

    for name in dict.fromkeys(names):
        with Bars() as progress:
            path = store.resolve(name, Settings.from_environment(), progress=progress)
        with GGUFFile.open(path) as file:
            for config in configs(arguments):
                prepared = prepare(file, **config.options(n_ctx))
                refuse_what_cannot_run(name, prepared, goes_on)
                prepared.refuse_too_large(name)
                if arguments.profile:
                    refuse_other_backends(prepared.about.name)


def refuse_what_cannot_run(name: str, prepared: Prepared, goes_on: bool) -> None:
    """Raises RequestError for models that take no text, or none that is gone on with."""
    if prepared.config.start is not None:
        what, fix = "bench does not run encoder-decoders", "time its encoder, converted alone"
        raise RequestError(what, where=name, fix=fix)
    if goes_on and not prepared.config.causal:
        what = "tokens that see each other both ways take one step: no text is gone on with"
        raise RequestError(what, where=name, fix="give -n 0, and no -pg or -d")


def show(lines: Sequence[str]) -> None:
    for line in lines:
        print(printable(line, keep="\n"), flush=True)


def cases_of(arguments: argparse.Namespace) -> list[Case]:
    """All tests, in llama-bench's order: for each depth the prompts, the generations, then both together."""
    from puna.measure import Case

    return [
        Case(prompt, generate, depth)
        for depth in arguments.n_depth
        for prompt, generate in (
            *((count, 0) for count in arguments.n_prompt if count),
            *((0, count) for count in arguments.n_gen if count),
            *arguments.n_prompt_gen,
        )
    ]


def positions(cases: Sequence[Case]) -> int:
    """What the context must hold for all of them."""
    return max(case.positions for case in cases)


def columns(arguments: argparse.Namespace) -> list[str]:
    """The columns to show besides the usual ones: what was not left at its default."""
    usual = {"n_batch": [2048], "n_ubatch": [512], "type_k": [None], "type_v": [None]}
    given = {
        "n_batch": arguments.batch_size,
        "n_ubatch": arguments.ubatch_size,
        "type_k": arguments.cache_type_k,
        "type_v": arguments.cache_type_v,
    }
    return [name for name, values in given.items() if values != usual[name]]


def peaks_here() -> Peaks | None:
    """What the machine can do, or None where that cannot be measured, which is said."""
    from puna.measure import measure_peaks

    say_if_busy()
    try:
        return measure_peaks()
    except BackendError as error:
        say(
            f"note: the machine's peaks are not measured, and their columns left out: {printable(str(error))}"
        )
        return None


def say_if_busy() -> None:
    from puna.measure import busy_note

    if note := busy_note():
        say(f"note: {note}")


@dataclass(frozen=True)
class Config:
    """One way to load a model."""

    backend: str
    n_batch: int
    n_ubatch: int
    type_k: str | None
    type_v: str | None
    threads: int | None

    def options(self, n_ctx: int) -> dict[str, Any]:
        """As `puna.load` takes them."""
        return {
            "backend": self.backend,
            "n_ctx": n_ctx,
            "threads": self.threads,
            "n_batch": min(self.n_batch, self.n_ubatch),
            "cache_type_k": self.type_k,
            "cache_type_v": self.type_v,
        }

    def load(self, name: str, n_ctx: int) -> Model:
        """Raises PunaError."""
        import puna

        with Bars() as progress:
            model = puna.load(name, **self.options(n_ctx), progress=progress)
        for note in model.notes:
            say(f"note: {printable(note)}")
        return model


def configs(arguments: argparse.Namespace) -> Iterator[Config]:
    a = arguments
    choices = (a.backend, a.batch_size, a.ubatch_size, a.cache_type_k, a.cache_type_v, a.threads)
    return (Config(*choice) for choice in product(*choices))


def outcomes(
    arguments: argparse.Namespace, name: str, config: Config, cases: Sequence[Case], peaks: Peaks | None
) -> Iterator[Outcome]:
    """Load a model, run all tests, and let it go."""
    from puna.measure import measure, threads_of
    from puna.measure.report import Outcome, Subject

    model = config.load(name, positions(cases))
    subject, layout = Subject.of(model.file), model.cache.layout
    repeats = arguments.repetitions or REPEATS
    for case in cases:
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        yield Outcome(
            subject=subject,
            backend=model.about.name,
            threads=threads_of(model),
            n_batch=config.n_batch,
            n_ubatch=config.n_ubatch,
            type_k=layout.k_type.lower(),
            type_v=layout.v_type.lower(),
            time=now,
            result=measure(model, case, repeats, warmup=not arguments.no_warmup),
            peaks=peaks,
        )
    del model
    gc.collect()  # before the next one is loaded


def profile(arguments: argparse.Namespace, names: Sequence[str]) -> int:
    """A table for a prompt's step and one for a decode step, of each model."""
    from puna.measure import measure_peaks, profile_step
    from puna.measure.report import peaks_line, profile_lines

    n_ctx = max(arguments.n_depth) + max(1, *arguments.n_prompt)
    check_all(names, arguments, n_ctx, max(arguments.n_depth) > 0)
    say_if_busy()
    peaks = measure_peaks()
    print(peaks_line(peaks))
    for name, config in product(names, configs(arguments)):
        model = config.load(name, n_ctx)
        for depth, tokens in product(arguments.n_depth, steps_of(arguments, model.plan.tokens)):
            title, *lines = profile_lines(profile_step(model, tokens, depth), peaks)
            show(["", f"{name}: {title}", *lines])
        del model
        gc.collect()
    return 0


def steps_of(arguments: argparse.Namespace, most: int) -> list[int]:
    """Tokens of the steps to profile: the first of each prompt, then that of a generation."""
    return list(dict.fromkeys([*(min(count, most) for count in arguments.n_prompt if count), 1]))


def refuse_what_a_profile_has_not(parser: Parser, arguments: argparse.Namespace) -> None:
    """Raises RequestError for options that would have no effect on a profile."""
    if arguments.output != "md":
        raise RequestError("a profile is a table for people", where="-o", fix="leave it out")
    for name, flag in TESTS_ONLY.items():
        if getattr(arguments, name) is not parser.get_default(name):  # the very object: it was not given
            what = "a profile is of single steps, repeated for some seconds"
            raise RequestError(what, where=flag, fix="leave it out")
