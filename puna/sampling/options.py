"""How a sampling option is declared: its flags, help, default, range and form, once, beside the field.

Each builder below returns a dataclass field whose metadata holds

    flags    llama.cpp's command line flags
    help     one line for people
    parse    text of the command line -> value; None for a switch
    check    (name, value) -> normalised value, or RequestError
    repeat   True where the flag may be given several times: `parse` then takes the list of texts
    also     more flags for the same field, as (flags, parse, help)
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from puna.errors import RequestError

__all__ = [
    "SAMPLERS",
    "Range",
    "biases",
    "breakers",
    "integer",
    "order",
    "parse_breakers",
    "parse_letters",
    "parse_logit_bias",
    "parse_names",
    "real",
    "switch",
]

# Name in the chain -> its letter in --sampling-seq.
SAMPLERS: Mapping[str, str] = {
    "penalties": "e",
    "dry": "d",
    "top_n_sigma": "s",
    "top_k": "k",
    "typ_p": "y",
    "top_p": "p",
    "min_p": "m",
    "xtc": "x",
    "temperature": "t",
}
ALIASES = {
    "nucleus": "top_p",
    "temp": "temperature",
    "typ": "typ_p",
    "typical": "typ_p",
    "typical_p": "typ_p",
}
T = TypeVar("T")

LONGEST_BREAKER = 40  # bytes, llama.cpp's limit


class Range(NamedTuple):
    """The numbers from low to high, both included."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"from {self.low} to {self.high}"


TOKENS, BIASES = Range(0, 2**31 - 1), Range(-(10**6), 10**6)  # a bias of -inf is allowed too


def real(default: float, text: str, *flags: str, span: Range) -> float:
    """A field for a number in a range."""
    return _option(default, text, flags, float, partial(_check_real, span=span))


def integer(default: int, text: str, *flags: str, span: Range) -> int:
    """A field for a whole number in a range."""
    return _option(default, text, flags, int, partial(_check_integer, span=span))


def switch(text: str, *flags: str) -> bool:
    """A field that is False unless its flag is given."""
    return _option(False, text, flags, None, _check_switch)


def order(default: str, text: str, *flags: str, letters: tuple[str, ...]) -> Any:
    """A field for the samplers in order; `letters` are the flags that take llama.cpp's letters."""
    also = ((letters, parse_letters, "the same, a letter a sampler"),)
    return _option(parse_names(default), text, flags, parse_names, _check_order, also=also)


def breakers(default: tuple[str, ...], text: str, *flags: str) -> tuple[str, ...]:
    """A field for DRY's sequence breakers."""
    return _option(default, text, flags, parse_breakers, _check_breakers, repeat=True)


def biases(text: str, *flags: str) -> Mapping[int, float]:
    """A field for a mapping from token id to what is added to its logit."""
    form = {"flags": flags, "help": text, "parse": parse_logit_bias, "check": _check_bias, "repeat": True}
    empty: Mapping[int, float] = field(default_factory=dict, hash=False, metadata={**form, "also": ()})
    return empty


def parse_names(text: str) -> tuple[str, ...]:
    """Samplers by name, joined by `;`: `penalties;top_k;temperature`. Raises RequestError."""
    return tuple(_sampler(name) for name in text.split(";") if name.strip())


def parse_letters(text: str) -> tuple[str, ...]:
    """Samplers by llama.cpp's letters: `edskypmxt`. Raises RequestError for a letter that is none."""
    names = {letter: name for name, letter in SAMPLERS.items()}
    if unknown := set(text) - set(names):
        known = ", ".join(f"{letter} {name}" for letter, name in names.items())
        what = f"{''.join(sorted(unknown))!r} in {text!r} names no sampler"
        raise RequestError(what, where="samplers", fix=f"use {known}")
    return tuple(names[letter] for letter in text)


def parse_breakers(texts: Iterable[str]) -> tuple[str, ...]:
    """DRY's sequence breakers from the command line; `none` stands for no breaker."""
    return tuple(text for text in texts if text != "none")


def parse_logit_bias(texts: Iterable[str]) -> dict[int, float]:
    """`ID+BIAS` and `ID-BIAS`, as llama.cpp takes them; biases of one id add up. Raises RequestError."""
    found: dict[int, float] = {}
    for text in texts:
        match = re.fullmatch(r"\s*(\d+)([+-])(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+|inf)\s*", text, re.IGNORECASE)
        if not match:
            fix = "write ID+BIAS or ID-BIAS, such as 15043+1 or 15043-inf"
            raise RequestError(f"{text!r} is no token id with a bias", where="logit_bias", fix=fix)
        token, sign, size = match.groups()
        found[int(token)] = found.get(int(token), 0.0) + float(sign + size)
    return found


def _option(
    default: T,
    text: str,
    flags: tuple[str, ...],
    parse: Callable[[Any], Any] | None,
    check: Callable[[str, Any], Any],
    **more: Any,
) -> T:
    form = {"flags": flags, "help": text, "parse": parse, "check": check, "repeat": False, "also": ()}
    return field(default=default, metadata={**form, **more})


def _check_real(name: str, value: Any, span: Range) -> float:
    number = value if isinstance(value, int | float) or hasattr(value, "__float__") else None
    if number is None or isinstance(value, bool) or not span.holds(float(number)):
        raise RequestError(f"{value!r} is out of range", where=name, fix=f"give a number {span}")
    return float(number)


def _check_integer(name: str, value: Any, span: Range) -> int:
    number = operator.index(value) if hasattr(value, "__index__") else None
    if number is None or isinstance(value, bool) or not span.holds(number):
        raise RequestError(f"{value!r} is out of range", where=name, fix=f"give a whole number {span}")
    return number


def _check_switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{value!r} is neither True nor False", where=name, fix="give one of the two")
    return value


def _check_order(name: str, value: Any) -> tuple[Any, ...]:
    """Names, callables, `;`-joined names, or letters; a text without `;` that is a name is that sampler."""
    if isinstance(value, str):
        return parse_names(value) if ";" in value or value in SAMPLERS else parse_letters(value)
    if not isinstance(value, Iterable):
        fix = "give names, callables, or names joined by ';'"
        raise RequestError(f"{value!r} is no list of samplers", where=name, fix=fix)
    return tuple(entry if callable(entry) else _sampler(entry) for entry in value)


def _sampler(name: Any) -> str:
    plain = str(name).strip().lower().replace("-", "_")
    plain = ALIASES.get(plain, plain)
    if plain not in SAMPLERS:
        fix = f"use some of {';'.join(SAMPLERS)}"
        raise RequestError(f"{name!r} names no sampler", where="samplers", fix=fix)
    return plain


def _check_breakers(name: str, value: Any) -> tuple[str, ...]:
    listed = (value,) if isinstance(value, str) else value
    if not isinstance(listed, Sequence) or not all(isinstance(text, str) for text in listed):
        raise RequestError(f"{value!r} is no list of texts", where=name, fix="give a list of texts")
    for text in listed:
        if not 1 <= len(text.encode()) <= LONGEST_BREAKER:
            fix = f"give texts of 1 to {LONGEST_BREAKER} bytes"
            raise RequestError(f"{text!r} has {len(text.encode())} bytes", where=name, fix=fix)
    return tuple(listed)


def _check_bias(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise RequestError(f"{value!r} is no mapping", where=name, fix="map token ids to biases")
    return {
        _check_integer(name, token, TOKENS): bias if bias == -math.inf else _check_real(name, bias, BIASES)
        for token, bias in value.items()
    }
