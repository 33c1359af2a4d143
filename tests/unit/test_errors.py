"""The exception tree and its one-line messages."""

from __future__ import annotations

import re

import pytest

import puna
from puna import errors


def test_message_is_where_what_fix() -> None:
    """The message joins the three parts, and each is kept."""
    error = errors.PunaError("is too long", where="prompt", fix="shorten it")
    assert str(error) == "prompt: is too long; shorten it"
    assert (error.where, error.what, error.fix) == ("prompt", "is too long", "shorten it")


@pytest.mark.parametrize(
    ("given", "message"),
    [({}, "bad"), ({"where": "a.gguf"}, "a.gguf: bad"), ({"fix": "stop"}, "bad; stop")],
)
def test_parts_may_be_left_out(given: dict[str, str], message: str) -> None:
    """Without a place or a remedy the message has no stray punctuation."""
    assert str(errors.PunaError("bad", **given)) == message


def test_message_cannot_break_the_line_or_the_terminal() -> None:
    """Control characters out of a hostile file are written as escapes."""
    error = errors.FormatError("name 'a\n\x1b[31mb\u202e'", where="x\r.gguf")
    assert str(error) == r"x\r.gguf: name 'a\n\x1b[31mb\u202e'"
    assert str(error).isprintable()


def test_every_error_is_a_puna_error() -> None:
    """All names that the module exports descend from PunaError, and a request error is a ValueError too."""
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.PunaError)
    assert issubclass(errors.RequestError, ValueError)
    assert puna.PunaError is errors.PunaError


def test_docstring_draws_the_whole_tree() -> None:
    """The tree in the module's docstring names every exported error."""
    assert set(re.findall(r"\w+Error", errors.__doc__ or "")) == set(errors.__all__)
