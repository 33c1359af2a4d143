"""`puna verify`: whether a backend computes what the reference backend computes."""

from __future__ import annotations

import argparse
import gc
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from puna.cli import options, report
from puna.cli.parser import Parser, checked, number
from puna.cli.perplexity import amend
from puna.cli.status import NO
from puna.cli.text import columns, printable
from puna.errors import RequestError
from puna.units import human

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from puna.measure.verify import Agreement

__all__ = ["build", "run"]

TOKENS, BOUND = 256, 0.01
SHOWN = 40  # characters of a prompt
T = TypeVar("T")


def build(prog: str) -> Parser:
    """The command's options."""
    parser = Parser(
        prog,
        "Compare the logits that a backend computes with the reference backend's, which computes in float32, on a few "
        "texts. The exit status is 1 where they differ by more than the bound.",
    )
    options.add_name(parser)
    options.add_prompt(parser, escaped="-p and -f")
    parser.add_argument(
        "--bound",
        type=checked(bound),
        default=BOUND,
        metavar="N",
        help="most that the mean squared error of the logits may be, over the mean of their squares; activations of "
        f"8 bits cost about 0.002 (default {BOUND})",
    )
    options.add_model(parser)
    amend(parser, "-c", TOKENS, f"most tokens of a text that are compared (default {TOKENS})")
    return parser


def bound(text: str) -> float:
    value = number(float)(text)
    if not 0 <= value < math.inf:
        raise ValueError(f"{text} is no bound: give a number from 0 on")
    return value


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    arguments = build(prog).parse(argv)
    options.check_model(arguments)
    given = options.prompt_of(arguments)
    from puna.measure.verify import PROMPTS, agreement, joined

    texts = PROMPTS if given is None else (given,)
    prompts = prepare(arguments, texts)
    plain = {"backend": "reference", "no_repack": False, "cache_type_k": None, "cache_type_v": None}
    wanted = computed(arguments, prompts, lambda _, logits: logits, **plain)
    parts = computed(arguments, prompts, lambda i, logits: agreement(logits, wanted[i]))
    total = joined(parts)
    rows = [line(printable(text[:SHOWN]), part) for text, part in zip(texts, parts, strict=True)]
    heads = ("text", "tokens", "NMSE", "mean KL", "max KL", "same top")
    print("\n".join(columns([heads, *rows, line("all", total)], "<>>>>>")))
    error = float(total.nmse.mean())
    agrees = error <= arguments.bound  # what is no number does not
    verdict, place = ("agrees", "within") if agrees else ("DIFFERS", "beyond")
    print(f"{verdict}: the mean NMSE is {error:.2g}, {place} the bound of {arguments.bound:g}")
    return 0 if agrees else NO


def prepare(arguments: argparse.Namespace, texts: Sequence[str]) -> list[list[int]]:
    """The texts' ids, and what is about to happen said; the context will be just as long. Raises PunaError."""
    from puna.backends.free import free_memory
    from puna.measure.verify import needs
    from puna.settings import Settings
    from puna.vocabulary import Vocabulary

    if arguments.backend == "auto":
        arguments.backend = Settings.from_environment().backend or "auto"
    with options.open_file(arguments) as file:
        vocabulary = Vocabulary(file)
        whole = [vocabulary.tokenize(text) for text in texts]
        sizes = needs(file, arguments.backend, not arguments.no_repack)
    prompts = [ids[: arguments.ctx_size] for ids in whole]
    if not all(prompts):
        raise RequestError("the text is empty, or -c leaves nothing of it", fix="give a text")
    if prompts != whole:
        report.say(f"note: of longer texts the first {report.counted(arguments.ctx_size)} are compared (-c)")
    arguments.ctx_size = max(map(len, prompts))
    weights = ", then ".join(f"{human(size)} on the {name} backend" for name, size in sizes.items())
    logits = human(4 * vocabulary.tokenizer.vocab_size * sum(map(len, prompts)))
    report.say(f"weights take {weights}; logits {logits}; {human(free_memory())} are free")
    return prompts


def computed(
    arguments: argparse.Namespace,
    prompts: Sequence[Sequence[int]],
    keep: Callable[[int, NDArray[np.float32]], T],
    **changed: Any,
) -> list[T]:
    """What is kept of each prompt's logits, by a model that is let go afterwards.

    changed: options in place of those given.
    """
    model = options.load(argparse.Namespace(**{**vars(arguments), **changed}))
    report.opening(options.model_name(arguments), model)
    found = [keep(i, model.logits(ids)) for i, ids in enumerate(prompts)]
    del model
    gc.collect()  # before the next one is loaded
    return found


def line(name: str, part: Agreement) -> tuple[str, ...]:
    """A row of the table."""
    nmse, kld = f"{part.nmse.mean():.2e}", (f"{part.kld.mean():.5f}", f"{part.kld.max():.5f}")
    return name, str(len(part.nmse)), nmse, *kld, f"{100 * part.same_top.mean():.1f}%"
