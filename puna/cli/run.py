"""`puna run`: continue a text; or talk, where none is given and the model has a chat template."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from puna.cli import chat, options, prompt_cache, report
from puna.cli.parser import Parser
from puna.cli.screen import Screen
from puna.cli.status import INTERRUPTED
from puna.cli.text import from_stdin
from puna.errors import RequestError

if TYPE_CHECKING:
    from puna.engine import Model

__all__ = ["build", "run"]

# Options that only a conversation can honour.
IMPLY = {
    "-sys": "system_prompt",
    "-sysf": "system_prompt_file",
    "-st": "single_turn",
    "--chat-template": "chat_template",
    "--chat-template-file": "chat_template_file",
}


def build(prog: str) -> Parser:
    """The command's options."""
    parser = Parser(prog, "Continue a text. Without one, talk with the model if it has a chat template.")
    options.add_name(parser)
    options.add_prompt(parser)
    options.add_generation(parser)
    prompt_cache.add_options(parser)
    options.add_model(parser)
    options.add_sampling(parser)
    group = options.add_chat(parser)
    group.add_argument(
        "-cnv",
        "--conversation",
        action="store_true",
        default=None,
        help="talk, through the chat template; the other options here imply it",
    )
    group.add_argument(
        "-no-cnv",
        "--no-conversation",
        action="store_false",
        dest="conversation",
        help="continue the text as it is",
    )
    group = parser.add_argument_group("output")
    group.add_argument("--no-display-prompt", action="store_true", help="do not repeat the prompt")
    group.add_argument("--dump-graph", action="store_true", help="print the model's graph, and end")
    group.add_argument("--dump-plan", action="store_true", help="print the plan of a step, and end")
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    arguments = build(prog).parse(argv)
    sampling = options.sampling_of(arguments)
    options.shift_of(arguments)
    prompt_cache.check(arguments, conversation_asked(arguments))
    options.check_model(arguments)
    if arguments.dump_graph:
        return dump_graph(arguments)
    if conversation_asked(arguments):
        chat.check_template(arguments)
    text = given_text(arguments)
    model = options.load(arguments)
    if arguments.dump_plan:
        print(model.plan.table())
        return 0
    if talks(arguments, text, model):
        return chat.talk(arguments, model, text, sampling)
    return complete(arguments, model, text or "", sampling)


def given_text(arguments: argparse.Namespace) -> str | None:
    """The prompt: -p, -f, or what is piped in. None where there is none."""
    text = options.prompt_of(arguments)
    needless = conversation_asked(arguments) or arguments.dump_plan
    if text is None and not needless and not sys.stdin.isatty():
        return from_stdin().removesuffix("\n")
    return text


def conversation_asked(arguments: argparse.Namespace) -> bool | None:
    """What the options say; None where they leave it open. Raises RequestError for a contradiction."""
    implied = [flag for flag, name in IMPLY.items() if getattr(arguments, name) not in (None, False)]
    if implied and arguments.conversation is False:
        raise RequestError(
            "without a conversation it means nothing", where=implied[0], fix="leave out -no-cnv"
        )
    return True if implied else arguments.conversation


def talks(arguments: argparse.Namespace, text: str | None, model: Model) -> bool:
    """Whether this is a conversation: asked for, or no text and a chat template."""
    asked = conversation_asked(arguments)
    if asked is None and arguments.prompt_cache is not None:
        return False  # without a text, what the file has is continued
    return (text is None and model.tokenizer.chat_template is not None) if asked is None else asked


def complete(arguments: argparse.Namespace, model: Model, text: str, sampling: dict[str, Any]) -> int:
    """The text and its continuation on standard output, all else on standard error."""
    name = options.model_name(arguments)
    cache = prompt_cache.PromptCache(arguments, model)
    held = cache.sequence.tokens[: cache.sequence.border or None]  # an answer is no part of what is asked
    prompt = list(held) if held and not text else text
    how = {**sampling, **options.shift_of(arguments), "sequence": cache.sequence}
    generation = model.stream(prompt, arguments.predict, stop=options.stops_of(arguments), **how)
    cache.begin(generation)
    report.opening(name, model)
    if arguments.verbose_prompt:
        report.tokens(model, generation.writer.prompt)
    screen = Screen(arguments.color)
    if not arguments.no_display_prompt:
        screen.prompt(text or model.detokenize(held))
        if model.config.start is not None:
            screen.end_line()
    status = 0
    try:
        for piece in generation:
            screen.write(piece)
    except KeyboardInterrupt:
        status = INTERRUPTED
    finally:
        screen.end_line()
    totals = report.Totals()
    totals.add(generation.timings)
    report.summary(name, model, totals)
    report.ended(generation)
    cache.end(generation)
    return status


def dump_graph(arguments: argparse.Namespace) -> int:
    """The graph as the architecture builds it, from the file's header alone."""
    from puna.graph import dump
    from puna.models.registry import build as build_graph

    with options.open_file(arguments) as file:
        print(dump(build_graph(file)[0]))
    return 0
