"""The file of --prompt-cache: what an earlier run computed, taken up, and what this one computes, kept."""

from __future__ import annotations

import argparse
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING

from puna.cli.copies import checked_output
from puna.cli.parser import Parser
from puna.cli.report import counted, say
from puna.cli.text import reason
from puna.errors import RequestError

if TYPE_CHECKING:
    from puna.engine import Model
    from puna.generation import Generation

__all__ = ["PromptCache", "add_options", "check"]


def add_options(parser: Parser) -> None:
    """Which file, and what is written to it."""
    group = parser.add_argument_group("prompt cache")
    group.add_argument(
        "--prompt-cache",
        metavar="FILE",
        help="take the computed prompt from this file, as far as the text begins the same, and keep it there",
    )
    group.add_argument(
        "--prompt-cache-all",
        action="store_true",
        help="keep what is generated, too; a run without a text goes on from there",
    )
    group.add_argument("--prompt-cache-ro", action="store_true", help="write nothing to the file")


def check(arguments: argparse.Namespace, talks: bool | None) -> None:
    """Before the model is loaded: options that go together, and a file that can be read and written.

    What broken-off runs left of it goes, with a note. talks: whether it is a conversation.
    Raises RequestError, and FormatError for a file that is no saved sequence.
    """
    if arguments.prompt_cache is None:
        for name in ("all", "ro"):
            if getattr(arguments, f"prompt_cache_{name}"):
                flag = f"--prompt-cache-{name}"
                raise RequestError("there is no file", where=flag, fix="give --prompt-cache FILE")
    elif talks:
        what, fix = "a conversation is kept by /save and /load", "leave it out, or give -no-cnv"
        raise RequestError(what, where="--prompt-cache", fix=fix)
    else:
        from puna.cache import saved

        if not arguments.prompt_cache_ro:
            checked_output(arguments.prompt_cache, ())
        if not is_new(arguments.prompt_cache):
            saved.check(Path(arguments.prompt_cache))


class PromptCache:
    """The sequence that a text is computed in, and the file that it is kept in, if any."""

    def __init__(self, arguments: argparse.Namespace, model: Model) -> None:
        self.model, self.path = model, arguments.prompt_cache
        self.writes = self.path is not None and not arguments.prompt_cache_ro
        self.all, self.kept, self.same = arguments.prompt_cache_all, 0, 0
        self.failed: RequestError | None = None
        self.sequence = model.cache.open() if is_new(self.path) else model.restore(self.path)

    def begin(self, generation: Generation) -> None:
        """Before the first token: the prompt is kept once it is computed, where it was not there before."""
        prompt = generation.writer.prompt
        self.same = self.sequence.common_prefix(prompt)
        if self.writes and self.same < len(prompt):
            generation.writer.prompted = self.save

    def end(self, generation: Generation) -> None:
        """After the last token: what was generated is kept, where that was asked for.

        Raises RequestError where the file could not be written, then or before.
        """
        if self.writes and self.all and len(self.sequence):
            last = generation.ids[-1:]
            room = self.model.cache.room(self.sequence)
            if last and generation.finish_reason == "length" and len(self.sequence) < room:
                self.model.step(self.sequence, last)  # it was shown, so it belongs there
            self.save()
        timings = generation.timings
        if timings.cached < min(self.same, timings.prompt_tokens - 1):
            lost = self.lost or timings.uncached
            say(
                f"{counted(self.same)} of the prompt are in {self.path}, and {timings.cached} were used: {lost}"
            )
        if self.failed:
            raise self.failed
        if self.kept:
            say(f"kept {counted(self.kept)} in {self.path}")

    @property
    def lost(self) -> str:
        """Why a model with a state may use less than is there."""
        if not self.model.plan.kv.states:
            return ""
        page = self.model.plan.kv.page
        return f"a state is kept at the end of that text, and at its last border of {page} tokens"

    def save(self) -> None:
        """Write the file; where that fails, the text goes on and `end` says so."""
        try:
            self.model.save(self.sequence, self.path)
        except RequestError as error:
            self.failed = error
        else:
            self.kept, self.failed = len(self.sequence), None


def is_new(path: str | None) -> bool:
    """Whether there is nothing to read yet: no file, or one that is empty."""
    try:
        found = None if path is None else Path(path).stat()
        if found and not (S_ISREG(found.st_mode) or S_ISDIR(found.st_mode)):
            raise RequestError("this is a device or a pipe", where=str(path), fix="name a file")
        return found is None or (found.st_size == 0 and S_ISREG(found.st_mode))
    except FileNotFoundError:
        return True
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read the file: {reason(error)}", where=str(path)) from None
