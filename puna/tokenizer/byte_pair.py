"""Byte-pair models: words of a byte alphabet, merged in the order of a list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.errors import RequestError, TokenizerError
from puna.tokenizer.pre import Pre

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import PreTokenizer

    from puna.tokenizer.tokens import TokenTable

__all__ = ["BytePair"]

SPACE = "\u2581"
MERGES_KEY = "tokenizer.ggml.merges"


def byte_alphabet() -> dict[int, int]:
    """GPT-2's character for each byte, as a table from the character's code to the byte.

    Printable bytes stand for themselves, the rest for the characters from U+0100 on.
    Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = sorted(set(range(256)) - set(printable))
    return {byte: byte for byte in printable} | {0x100 + n: byte for n, byte in enumerate(rest)}


BYTE_OF = byte_alphabet()


class BytePair:
    """Text to ids and back for `tokenizer.ggml.model` = gpt2 or gemma4."""

    def __init__(self, vocabulary: TokenTable, pre: Pre, merges: Sequence[str]) -> None:
        """merges: pairs with a space between, the first merged first."""
        self._ids, self._pre = vocabulary.ids, pre
        self.notes: tuple[str, ...] = ()
        self._model = self._build(vocabulary, merges)

    def _build(self, vocabulary: TokenTable, merges: Sequence[str]) -> Library:
        from tokenizers import Tokenizer as Library

        model = Library(self._merger(vocabulary, merges))
        model.pre_tokenizer = pre_tokenizer(self._pre)
        return model

    def _merger(self, vocabulary: TokenTable, merges: Sequence[str]) -> BPE:
        from tokenizers.models import BPE

        ids = sound_ids(vocabulary)
        pairs = [
            (left, right) for left, _, right in (merge.partition(" ") for merge in dict.fromkeys(merges))
        ]
        options = {"ignore_merges": self._pre.ignore_merges, "byte_fallback": not self._pre.byte_level}
        try:
            return BPE(ids, pairs, **options)
        except Exception:  # the library has no class of its own for a merge outside the vocabulary
            usable = [(a, b) for a, b in pairs if a in ids and b in ids and a + b in ids]
        skipped = len(pairs) - len(usable)
        noun = "merge" if skipped == 1 else "merges"
        self.notes = (f"{skipped} {noun} of {MERGES_KEY!r} outside the vocabulary: skipped",)
        try:
            return BPE(ids, usable, **options)
        except Exception as error:
            raise TokenizerError(f"{MERGES_KEY!r}: {error}", where=vocabulary.where) from error

    def encode(self, text: str) -> list[int]:
        if self._pre.byte_level:
            return self._merge(text)
        text = text.replace(" ", SPACE)
        if not self._pre.gemma4:
            return self._merge(text)
        ids: list[int] = []
        for line in re.findall(r"[^\n]+|\n+", text):
            whole = self._ids.get(line) if line[0] == "\n" else None
            ids += [whole] if whole is not None else self._merge(line)
        return ids

    def _merge(self, text: str) -> list[int]:
        try:
            return self._model.encode(text, add_special_tokens=False).ids
        except BaseException as error:  # a panic of the library is no Exception
            if type(error).__name__ != "PanicException":
                raise
            what = "the text repeats one kind of character millions of times, more than a word may hold"
            raise RequestError(what, fix="shorten the run") from None

    def plain(self, text: str) -> bytes:
        """The bytes that a normal token stands for."""
        if not self._pre.byte_level:
            return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")
        try:
            return text.translate(BYTE_OF).encode("latin-1")
        except UnicodeEncodeError:  # a token outside the byte alphabet stands for itself
            return text.encode("utf-8", "surrogateescape")


def pre_tokenizer(pre: Pre) -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Split
    from tokenizers.pre_tokenizers import Sequence as Steps

    steps: list[PreTokenizer] = [Split(Regex(split), "isolated") for split in pre.splits]
    if pre.byte_level:
        steps.append(ByteLevel(add_prefix_space=False, use_regex=False))
    return Steps(steps)


def sound_ids(vocabulary: TokenTable) -> dict[str, int]:
    """Ids by text, without tokens whose bytes are not UTF-8: no text holds them, and the library refuses them."""
    if is_sound("".join(vocabulary.texts)):
        return dict(vocabulary.ids)
    return {text: token for text, token in vocabulary.ids.items() if is_sound(text)}


def is_sound(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
