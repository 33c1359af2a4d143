"""The options that subcommands share, each declared once, under llama.cpp's names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any

from puna.cli import arch_files
from puna.cli.parser import Parser, checked, number, one_of, whole
from puna.cli.report import Bars
from puna.cli.text import from_file, unescape
from puna.errors import RequestError
from puna.sampling import SamplingParams

if TYPE_CHECKING:
    from puna.engine import Model
    from puna.gguf import GGUFFile

__all__ = [
    "add_chat",
    "add_generation",
    "add_model",
    "add_name",
    "add_prompt",
    "add_sampling",
    "check_gives",
    "check_model",
    "load",
    "loading",
    "model_name",
    "open_file",
    "prompt_of",
    "sampling_of",
    "shift_of",
    "stops_of",
]

SAMPLING = "sampling."  # before a field's name in the parsed arguments


def add_name(parser: Parser) -> None:
    """The model, by its place or by -m."""
    parser.add_argument(
        "name", nargs="?", metavar="MODEL", help="a GGUF file, or a name such as smollm2:135m"
    )
    parser.add_argument("-m", "--model", metavar="MODEL", help="the same")
    parser.usage = f"{parser.prog} MODEL [options]"


def model_name(arguments: argparse.Namespace) -> str:
    """The model that was named. Raises RequestError for none or two."""
    given = [name for name in (arguments.name, arguments.model) if name]
    if len(given) != 1:
        what = f"two models are named, {given[0]!r} and {given[1]!r}" if given else "no model is named"
        raise RequestError(what, fix="name one, as in: puna run smollm2:135m")
    return str(given[0])


def check_model(arguments: argparse.Namespace) -> None:
    """Before any text is read: is the model's name one that can be, and what do the --arch-files add?

    Raises RequestError or StoreError.
    """
    from puna import store

    store.check(model_name(arguments))
    arch_files.run_files(arguments)


def add_model(parser: Parser) -> None:
    """How the model is loaded."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "-c",
        "--ctx-size",
        type=whole(0),
        metavar="N",
        help="positions of the context; 0 takes all that the model was trained on, or what fits (default: the"
        " model's, up to 4096)",
    )
    group.add_argument(
        "--fit",
        action="store_true",
        help="where the context does not fit into memory, take the longest that does and leaves a sixteenth of it free,"
        " or 1 GiB",
    )
    group.add_argument(
        "-np",
        "--parallel",
        type=whole(1),
        default=4,
        metavar="N",
        help="sequences for which layers with a sliding window keep room (default 4)",
    )
    group.add_argument(
        "-b",
        "--batch-size",
        type=whole(1),
        default=512,
        metavar="N",
        help="most tokens computed at once; it sizes the compute buffer (default 512)",
    )
    group.add_argument(
        "-t", "--threads", type=whole(-1), metavar="N", help="compute threads (default: the backend's choice)"
    )
    for letter, what in (("k", "keys"), ("v", "values")):
        group.add_argument(
            f"-ct{letter}",
            f"--cache-type-{letter}",
            metavar="TYPE",
            help=f"type of the {what} in the KV cache, such as f16 or q8_0 (default: the backend's)",
        )
    group.add_argument(
        "--backend",
        default="auto",
        metavar="NAME",
        help="what computes: a backend by name, or auto for the best one here (default auto)",
    )
    add_memory(group)
    arch_files.add_option(group)


def add_memory(group: argparse._ArgumentGroup) -> None:
    """Where weights lie, and how memory is taken."""
    group.add_argument(
        "--no-mmap",
        action="store_true",
        help="read the file instead of mapping it, past the system's file cache where it is not in there",
    )
    group.add_argument(
        "--mlock", action="store_true", help="keep weights and KV cache from being swapped out"
    )
    group.add_argument(
        "--mem-align",
        type=whole(1),
        metavar="N",
        help="the weights, the compute buffer and each layer's cache begin at a multiple of N bytes, a power of two"
        " (default 64)",
    )
    group.add_argument(
        "--no-huge-pages",
        action="store_true",
        help="do not ask the system to join the pages of weights into huge ones",
    )
    group.add_argument(
        "-nr",
        "--no-repack",
        action="store_true",
        help="read weights from the mapped file, row by row: slower, for models larger than memory",
    )


def loading(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the options of `add_model` ask for, as `puna.load` takes it."""
    return {
        "backend": arguments.backend,
        "n_ctx": arguments.ctx_size,
        "threads": arguments.threads if arguments.threads and arguments.threads > 0 else None,
        "n_batch": arguments.batch_size,
        "parallel": arguments.parallel,
        "cache_type_k": arguments.cache_type_k,
        "cache_type_v": arguments.cache_type_v,
        "mmap": not arguments.no_mmap,
        "mlock": arguments.mlock,
        "huge_pages": not arguments.no_huge_pages,
        "mem_align": arguments.mem_align,
        "repack": not arguments.no_repack,
        "fit": arguments.fit,
        **({"pooling": arguments.pooling} if "pooling" in arguments else {}),
    }


def check_gives(arguments: argparse.Namespace, what: str) -> None:
    """Raise RequestError, from the header alone, where a model does not give "logits" or "text"."""
    from puna.models.registry import build
    from puna.steps import check_gives

    with open_file(arguments) as file:
        check_gives(build(file, lambda _: 1)[1], what)  # whatever context is asked for


def load(arguments: argparse.Namespace, gives: str = "") -> Model:
    """The model as the options ask for it. Raises PunaError.

    gives: what it has to give, for an error that says so before any of other options.
    """
    import puna

    if gives:
        check_gives(arguments, gives)
    with Bars() as progress:
        return puna.load(model_name(arguments), **loading(arguments), progress=progress)


def open_file(arguments: argparse.Namespace) -> GGUFFile:
    """The model's file, fetched if it is a name. Raises PunaError."""
    from puna import store
    from puna.gguf import GGUFFile
    from puna.settings import Settings

    with Bars() as progress:
        path = store.resolve(model_name(arguments), Settings.from_environment(), progress=progress)
    # Commands without the option read headers alone.
    return GGUFFile.open(path, mmap=not getattr(arguments, "no_mmap", True))


def add_prompt(parser: Parser, escaped: str = "-p, -f, -r and --dry-sequence-breaker") -> None:
    """Where the text comes from. escaped: where backslashes mean something."""
    group = parser.add_argument_group("text")
    group.add_argument("-p", "--prompt", metavar="TEXT", help="the text; - reads standard input")
    group.add_argument("-f", "--file", metavar="FILE", help="a file with the text; - reads standard input")
    group.add_argument(
        "-e",
        "--escape",
        action="store_true",
        default=True,
        help=rf"in {escaped}, take \n, \r, \t, \', \", \\ and \xHH for what they stand for (default)",
    )
    group.add_argument(
        "--no-escape", action="store_false", dest="escape", help="leave backslashes as they are"
    )


def add_generation(parser: Parser) -> None:
    """How much is generated, and what is shown."""
    group = parser.add_argument_group("generation")
    group.add_argument(
        "-n",
        "--predict",
        "--n-predict",
        dest="predict",
        type=whole(-2),
        default=-1,
        metavar="N",
        help="most tokens to generate; -1 for no limit, -2 for as many as the context holds (default -1)",
    )
    group.add_argument(
        "--context-shift",
        action="store_true",
        help="when the context is full, drop the older half of it and go on; without, the text ends there",
    )
    group.add_argument(
        "--keep",
        type=whole(-1),
        default=0,
        metavar="N",
        help="tokens of the prompt that --context-shift leaves, beside a beginning mark; -1 for all (default 0)",
    )
    group.add_argument(
        "-r",
        "--reverse-prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="end at this text; may be given several times",
    )
    group.add_argument(
        "--verbose-prompt",
        action="store_true",
        help="show the prompt's token ids and pieces on standard error",
    )
    group.add_argument(
        "--color",
        nargs="?",
        const="on",
        default="off",
        type=one_of("on", "off", "auto"),
        metavar="[on|off|auto]",
        help="set off the prompt by colour; auto where the output is a terminal (default off)",
    )


def add_chat(parser: Parser) -> argparse._ArgumentGroup:
    """How the conversation goes."""
    group = parser.add_argument_group("conversation")
    group.add_argument("-sys", "--system-prompt", metavar="TEXT", help="what the model is told first")
    group.add_argument("-sysf", "--system-prompt-file", metavar="FILE", help="a file with the system prompt")
    group.add_argument("-st", "--single-turn", action="store_true", help="end after the first reply")
    group.add_argument(
        "--chat-template",
        metavar="NAME_OR_JINJA",
        help="chatml, another name in the model file, or the template itself (default: the model's own)",
    )
    group.add_argument("--chat-template-file", metavar="FILE", help="a file with the chat template")
    return group


def add_sampling(parser: Parser) -> None:
    """An option for each field of SamplingParams, from what the field says of itself."""
    group = parser.add_argument_group("sampling")
    for entry in fields(SamplingParams):
        form = entry.metadata
        add_field(group, entry, form["flags"], form["parse"], form["help"] + default_of(entry))
        for flags, parse, text in form["also"]:
            add_field(group, entry, flags, parse, text)


def add_field(
    group: argparse._ArgumentGroup, entry: Field[Any], flags: tuple[str, ...], parse: Any, text: str
) -> None:
    common: dict[str, Any] = {"dest": SAMPLING + entry.name, "default": argparse.SUPPRESS}
    common["help"] = text.replace("%", "%%")
    if parse is None:
        group.add_argument(*flags, action="store_true", **common)
        return
    check, repeat, numeric = entry.metadata["check"], entry.metadata["repeat"], parse in (int, float)
    read: Callable[[Any], Any] = number(parse) if numeric else parse

    def value(given: str) -> Any:
        if repeat:  # kept as it stands: all of them are read together
            check(flags[-1], read([given]))
            return given
        return check(flags[-1], read(given))

    group.add_argument(
        *flags,
        type=checked(value),
        action="append" if repeat else "store",
        metavar="N" if numeric else "TEXT",
        **common,
    )


def default_of(entry: Field[Any]) -> str:
    """What the help says of the default."""
    default = entry.default
    if isinstance(default, tuple):
        default = ";".join(default) if entry.name == "samplers" else " ".join(map(repr, default))
    return "" if not isinstance(default, int | float | str) or default is False else f" (default {default})"


def sampling_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling options that were given, by field. Raises RequestError."""
    given = {
        name.removeprefix(SAMPLING): value
        for name, value in vars(arguments).items()
        if name.startswith(SAMPLING)
    }
    for entry in fields(SamplingParams):
        if entry.metadata["repeat"] and entry.name in given:
            texts = given[entry.name]
            given[entry.name] = entry.metadata["parse"](escaped(arguments, texts))
    SamplingParams(**given)
    return given


def shift_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `Model.stream` is to do when the context is full. Raises RequestError for --keep alone."""
    if arguments.keep and not arguments.context_shift:
        raise RequestError("nothing is dropped, so all is kept", where="--keep", fix="give --context-shift")
    return {"context_shift": arguments.context_shift, "keep": arguments.keep}


def stops_of(arguments: argparse.Namespace) -> list[str]:
    """The stop strings."""
    return list(escaped(arguments, arguments.reverse_prompt))


def escaped(arguments: argparse.Namespace, texts: Iterable[str]) -> Iterable[str]:
    return [unescape(text) for text in texts] if arguments.escape else texts


def prompt_of(arguments: argparse.Namespace) -> str | None:
    """The text that -p or -f gives, None where neither does. Raises RequestError."""
    if arguments.prompt is not None and arguments.file is not None:
        raise RequestError("both -p and -f are given", fix="give one of them")
    if arguments.prompt == "-" or arguments.file == "-":
        return from_file("-").removesuffix("\n")
    text = arguments.prompt if arguments.file is None else from_file(arguments.file).removesuffix("\n")
    return text if text is None or not arguments.escape else unescape(text)
