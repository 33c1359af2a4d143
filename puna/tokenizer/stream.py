"""Ids to text, one at a time."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from puna.tokenizer.tokenizer import Tokenizer

__all__ = ["StreamDecoder"]


class StreamDecoder:
    """Gives the text of ids as they come, never half a character.

    The texts of `push` and `finish` together are `Tokenizer.decode` of the same ids.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool, strip_space: bool) -> None:
        self._tokenizer, self._skip_special, self._strip_space = tokenizer, skip_special, strip_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that is complete with this token: "" while a character's bytes are missing.

        Raises RequestError where the token is not in the vocabulary.
        """
        piece = self._tokenizer.piece(token)
        if self._skip_special and self._tokenizer.is_special(token):
            return ""
        if self._strip_space:
            piece, self._strip_space = piece.removeprefix(b" "), False
        return self._utf8.decode(piece)

    def finish(self) -> str:
        """The rest: U+FFFD for bytes that never became a character."""
        return self._utf8.decode(b"", final=True)
