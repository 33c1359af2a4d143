"""`puna chat`: talk with a model."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from puna.cli import lines, options, report
from puna.cli.conversation import Conversation
from puna.cli.parser import Parser
from puna.cli.report import counted, say
from puna.cli.screen import GREEN, RESET, Screen
from puna.cli.status import INTERRUPTED
from puna.cli.text import from_file, printable
from puna.errors import PunaError, RequestError
from puna.units import human

if TYPE_CHECKING:
    from puna.engine import Model

__all__ = ["build", "check_template", "run", "talk"]


def build(prog: str) -> Parser:
    """The command's options."""
    parser = Parser(prog, "Talk with a model, through its chat template. /help lists what else you can type.")
    options.add_name(parser)
    options.add_prompt(parser)
    options.add_chat(parser)
    options.add_generation(parser)
    options.add_model(parser)
    options.add_sampling(parser)
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    arguments = build(prog).parse(argv)
    sampling = options.sampling_of(arguments)
    options.shift_of(arguments)
    options.check_model(arguments)
    check_template(arguments)
    text = options.prompt_of(arguments)
    return talk(arguments, options.load(arguments), text, sampling)


def check_template(arguments: argparse.Namespace) -> None:
    """Raise RequestError, before the weights are loaded, where neither model nor options have a template.

    Or where the model writes no text at all.
    """
    options.check_gives(arguments, "text")
    if arguments.chat_template is not None or arguments.chat_template_file is not None:
        return
    with options.open_file(arguments) as file:
        if any(key.startswith("tokenizer.chat_template") for key in file.metadata):
            return
        from puna.tokenizer import load
        from puna.tokenizer.chat import find_template

        try:
            find_template(load(file.metadata))
        except RequestError as error:
            fix = "continue a text with puna run -p, or give --chat-template"
            raise RequestError(error.what, where=options.model_name(arguments), fix=fix) from None


def talk(arguments: argparse.Namespace, model: Model, text: str | None, sampling: dict[str, Any]) -> int:
    """A conversation until its end. text: the first message, where there is one already."""
    conversation = Conversation(
        model,
        system=system_of(arguments),
        template=template_of(arguments, model),
        predict=arguments.predict,
        stop=options.stops_of(arguments),
        sampling=sampling,
        shift=options.shift_of(arguments),
    )
    # A template that fails, or takes no system prompt, is said before anyone types.
    conversation.ids([*conversation.messages, {"role": "user", "content": "?"}])
    name = options.model_name(arguments)
    report.opening(name, model)
    session = Session(conversation, arguments)
    try:
        return session.loop(text)
    finally:
        session.screen.end_line()
        report.summary(name, model, conversation.totals)


def system_of(arguments: argparse.Namespace) -> str | None:
    if arguments.system_prompt is not None and arguments.system_prompt_file is not None:
        raise RequestError("both -sys and -sysf are given", fix="give one of them")
    if arguments.system_prompt_file is not None:
        return from_file(arguments.system_prompt_file).removesuffix("\n")
    given: str | None = arguments.system_prompt
    return given


def template_of(arguments: argparse.Namespace, model: Model) -> str | None:
    """The chat template that was asked for; None is the model's own."""
    from puna.tokenizer.chat import CHATML

    asked: str | None = arguments.chat_template
    if asked is not None and arguments.chat_template_file is not None:
        raise RequestError("both --chat-template and --chat-template-file are given", fix="give one of them")
    if arguments.chat_template_file is not None:
        return from_file(arguments.chat_template_file)
    if asked is None or "{" in asked:
        return asked
    named = {"chatml": CHATML, **model.tokenizer.chat_templates}
    if asked not in named:
        fix = f"use {', '.join(map(printable, named))}, or give the Jinja text"
        raise RequestError(f"there is no template {asked!r}", where="--chat-template", fix=fix)
    return named[asked]


class Session:
    """The loop of a conversation: read, answer, or do what a line with a slash says."""

    def __init__(self, conversation: Conversation, arguments: argparse.Namespace) -> None:
        self.conversation, self.arguments = conversation, arguments
        self.screen = Screen(arguments.color)
        self.interactive = sys.stdin.isatty()
        self.waiting = False  # for what someone types
        self.over = False

    def loop(self, text: str | None) -> int:
        """Until the end of the input, /exit, or an interrupt at the prompt. The exit status."""
        read = lines.line_reader()
        if self.interactive and not self.arguments.single_turn:
            say("/help lists the commands; end with /exit or Ctrl-D")
        given = None if text is None else lines.Typed(text, quoted=True)
        while not self.over:
            message, given = given, None
            try:
                self.take(message or self.typed(read))
            except EOFError:
                return 0
            except PunaError as error:
                if not self.interactive:
                    raise
                say(f"error: {error}")
            except KeyboardInterrupt:
                if self.waiting or not self.interactive or self.arguments.single_turn:
                    return INTERRUPTED
                self.screen.end_line()
        return 0

    def typed(self, read: Callable[[str], str]) -> lines.Typed:
        """The next message."""
        self.screen.paint(GREEN)
        self.waiting = True
        try:
            return lines.message(read)
        finally:
            self.screen.paint(RESET)

    def take(self, typed: lines.Typed) -> None:
        """One message or command."""
        self.waiting, text = False, typed.text
        if typed.quoted or not text.startswith("/"):
            if text.strip():
                self.answer(text)
        elif text.startswith("//"):
            self.answer(text[1:])
        else:
            word, _, rest = text.partition(" ")
            self.command(word.strip(), rest.strip())

    def answer(self, text: str) -> None:
        """Ask, and show the reply."""
        conversation = self.conversation
        if self.arguments.verbose_prompt:
            asked = [*conversation.messages, {"role": "user", "content": text}]
            report.tokens(conversation.model, conversation.ids(asked))
        self.show(conversation.ask(text))

    def show(self, reply: Generator[str, None, None]) -> None:
        """A reply, as it comes."""
        with closing(reply) as pieces:
            for piece in pieces:
                self.screen.write(piece)
        self.screen.end_line()
        if self.conversation.last:
            report.ended(self.conversation.last)
        self.over = self.arguments.single_turn

    def command(self, word: str, rest: str) -> None:
        """What a line with a slash asks for. Raises RequestError."""
        if word not in COMMANDS:
            near = difflib.get_close_matches(word, COMMANDS, n=1)
            others = "/help lists them; // sends a text that begins with /"
            fix = f"did you mean {near[0]}?" if near else others
            raise RequestError(f"there is no command {word}", fix=fix)
        action, _ = COMMANDS[word]
        action(self, rest)

    def help(self, _: str) -> None:
        for word, (_action, text) in COMMANDS.items():
            say(f"  {word:<16}{text}")
        say("  a line that ends with \\ goes on; ''' opens and closes a text of several lines")

    def leave(self, _: str) -> None:
        self.over = True

    def clear(self, _: str) -> None:
        self.conversation.clear()
        say("the conversation is empty")

    def again(self, _: str) -> None:
        self.show(self.conversation.ask_again())

    def system(self, text: str) -> None:
        if text:
            self.conversation.set_system(text)
        say(f"system prompt: {printable(self.conversation.system or 'none')}")

    def save(self, path: str) -> None:
        self.conversation.save(needed(path, "/save"))
        say(f"saved {counted(len(self.conversation.messages), 'message')} to {path}")

    def load(self, path: str) -> None:
        self.conversation.load(needed(path, "/load"))
        say(f"loaded {counted(len(self.conversation.messages), 'message')} from {path}")

    def stats(self, _: str) -> None:
        for line in self.conversation.totals.lines():
            say(line)
        self.tokens("")
        cache = self.conversation.model.cache.report
        shared = f", {human(cache.shared)} of it by several texts" if cache.shared else ""
        kept = f"{human(cache.remembered)} more of earlier texts" if cache.remembered else "no earlier texts"
        say(f"pages      {human(cache.held)} of {human(cache.nbytes)} held{shared}; {kept} at hand")

    def tokens(self, _: str) -> None:
        held, model = len(self.conversation.sequence), self.conversation.model
        say(f"cache      {held} of {counted(model.n_ctx)}")


def needed(path: str, word: str) -> str:
    if not path:
        raise RequestError("a file is missing", where=word, fix=f"write {word} FILE")
    return path


COMMANDS: Mapping[str, tuple[Callable[[Session, str], None], str]] = {
    "/help": (Session.help, "this list"),
    "/exit": (Session.leave, "end; so does Ctrl-D"),
    "/clear": (Session.clear, "forget the conversation, but not the system prompt"),
    "/regen": (Session.again, "answer the last message anew"),
    "/system": (Session.system, "TEXT: set the system prompt; without a text, show it"),
    "/save": (Session.save, "FILE: write the conversation as JSON"),
    "/load": (Session.load, "FILE: go on from a saved conversation"),
    "/stats": (Session.stats, "what the conversation has cost so far"),
    "/tokens": (Session.tokens, "how full the cache is"),
}
