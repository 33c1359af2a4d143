"""argparse with llama.cpp's habits: exact flags, values taken as they stand, errors in one line."""

from __future__ import annotations

import argparse
import difflib
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from puna.errors import PunaError, RequestError

__all__ = ["DEBUG", "Parser", "checked", "number", "one_of", "whole"]

DEBUG = "--debug"
LIKE_A_NUMBER = re.compile(r"-\.?\d")
MOST = 2**31 - 1
OPTIONAL = ("on", "off", "auto")  # what may follow a flag whose value may be left out
T = TypeVar("T")


class Formatter(argparse.HelpFormatter):
    """A line of flags, then an indented line of help: llama.cpp's flags are too long for two columns."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, max_help_position=8, width=100, **more)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {value_of(action)}"


class Parser(argparse.ArgumentParser):
    """Raises RequestError where argparse would print its usage and exit."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} [options]",
            description=description,
            allow_abbrev=False,
            formatter_class=Formatter,
        )
        self.add_argument(DEBUG, action="store_true", help="show where in Puna an error came from")
        self.doubtful = ""  # what may have been meant as the value of a flag that can do without

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments of a command line. Raises RequestError."""
        words = list(self.joined(argv))
        # argparse wants the words without a flag in one place: it fills every optional one at the first.
        end = words.index("--") if "--" in words else len(words)
        flags = [word for word in words[:end] if is_flag(word)]
        return self.parse_args([*flags, *(word for word in words[:end] if not is_flag(word)), *words[end:]])

    def debugs(self, argv: Sequence[str]) -> bool:
        """Whether --debug is among the flags, and not the value of one; the line may be wrong elsewhere."""
        rest = deque(argv)
        while rest and (word := rest.popleft()) != "--":
            if word == DEBUG:
                return True
            action = self._option_string_actions.get(plain(word))
            if rest and action is not None and action.nargs not in (0, "?"):
                rest.popleft()
        return False

    def joined(self, argv: Sequence[str]) -> Iterator[str]:
        """Each flag in one word with its value, so that a value may begin with a dash."""
        rest = deque(argv)
        while rest:
            word = rest.popleft()
            flag, equals, value = word.partition("=")
            flag = plain(flag)
            action = self._option_string_actions.get(flag)
            if word == "--":
                yield word
                yield from rest
                return
            if action is None:
                if is_flag(word):
                    self.refuse(flag)
                yield word
            elif action.nargs == 0:
                if equals:
                    raise RequestError("takes no value", where=flag, fix=f"leave out '={value}'")
                yield flag
            elif equals:
                yield f"{flag}={value}"
            elif action.nargs == "?":  # such as --color, whose value llama.cpp made optional
                yield f"{flag}={self.optional(flag, rest) or action.const}"
            elif rest:
                yield f"{flag}={rest.popleft()}"
            else:
                raise RequestError("a value is missing", where=flag, fix=f"write {flag} {value_of(action)}")

    def optional(self, flag: str, rest: deque[str]) -> str | None:
        """The value after a flag that can do without one; any other word is left for what it is."""
        if rest and rest[0] in OPTIONAL:
            return rest.popleft()
        if rest and not is_flag(rest[0]):
            self.doubtful = f"after {flag} write one of {', '.join(OPTIONAL)}"
        return None

    def refuse(self, flag: str) -> NoReturn:
        near = difflib.get_close_matches(flag, self._option_string_actions, n=3, cutoff=0.5)
        fix = f"the nearest are {', '.join(near)}" if near else f"{self.prog} --help lists them"
        raise RequestError(f"there is no flag {flag}", where=self.prog, fix=fix)

    def error(self, message: str) -> NoReturn:
        """argparse's `argument -n/--predict: what` as `-n/--predict: what`."""
        what = message.removeprefix("argument ")
        fix = self.doubtful or f"{self.prog} --help lists the options"
        raise RequestError(what, fix=None if what != message else fix)


def plain(flag: str) -> str:
    """A flag, which llama.cpp also takes with underscores."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


def is_flag(word: str) -> bool:
    """Whether a word by itself is a flag: `-` and negative numbers are not."""
    return word.startswith("-") and word != "-" and not LIKE_A_NUMBER.match(word)


def value_of(action: argparse.Action) -> str:
    """What stands for an option's value in the help."""
    return str(action.metavar or action.dest.upper())


def number(kind: Callable[[str], T]) -> Callable[[str], T]:
    """int or float, with an error in words."""

    def parse(text: str) -> T:
        try:
            return kind(text)
        except ValueError:
            article = "a whole number" if kind is int else "a number"
            raise ValueError(f"{text!r} is not {article}") from None

    return parse


def whole(least: int, most: int = MOST) -> Callable[[str], int]:
    """An argparse type: a whole number in a range."""

    def parse(text: str) -> int:
        value = number(int)(text)
        if not least <= value <= most:
            raise ValueError(f"{value} is not between {least} and {most}")
        return value

    return checked(parse)


def one_of(*words: str) -> Callable[[str], str]:
    """An argparse type: one of a few words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return checked(parse)


def checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse type from a function that raises PunaError or ValueError."""

    def run(text: str) -> Any:
        try:
            return parse(text)
        except PunaError as error:
            raise argparse.ArgumentTypeError(
                f"{error.what}; {error.fix}" if error.fix else error.what
            ) from None
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return run
