"""WordPiece: words, each covered from its start on by the longest pieces that there are.

Normalisation and words are those of BERT (https://github.com/google-research/bert/blob/master/tokenization.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from puna.errors import TokenizerError
from puna.tokenizer.tokens import TokenTable

__all__ = ["WordPiece"]

START = "\u2581"  # before the first piece of a word; the others have no mark
KNOWN, SHORT = 1 << 16, 64  # words whose pieces are kept, and their most characters
LONGEST = 256  # characters of a piece: time is linear in a word's length, and in this


class WordPiece:
    """Text to ids and back for `tokenizer.ggml.model` = bert.

    A word that the pieces do not cover is the unknown token, all of it.
    """

    def __init__(self, vocabulary: TokenTable, *, lowercase: bool, strip_accents: bool) -> None:
        """Raises TokenizerError for a piece longer than LONGEST."""
        from tokenizers.normalizers import BertNormalizer
        from tokenizers.pre_tokenizers import BertPreTokenizer

        ids, unknown = vocabulary.ids, vocabulary.meaning["unk"]
        longest = max(map(len, vocabulary.texts))
        if longest > LONGEST:
            what = f"a piece has {longest} characters, and {LONGEST} are the most"
            raise TokenizerError(what, where=vocabulary.where)
        self._normalizer = BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
        self._words = BertPreTokenizer()
        self._cut: Callable[[str], tuple[int, ...]] = lambda word: pieces(word, ids, longest, unknown)
        self._known = lru_cache(KNOWN)(self._cut)

    def encode(self, text: str) -> list[int]:
        words = self._words.pre_tokenize_str(self._normalizer.normalize_str(text))
        cut = [self._known(word) if len(word) <= SHORT else self._cut(word) for word, _ in words]
        return [token for part in cut for token in part]

    def plain(self, text: str) -> bytes:
        """The bytes that a normal token stands for: a word's first has a space before it."""
        return text.replace(START, " ").encode("utf-8", "surrogateescape")


def pieces(word: str, ids: Mapping[str, int], longest: int, unknown: int) -> tuple[int, ...]:
    """The ids of a word, longest piece first from left to right. Time is linear in the word's length."""
    rest, found = START + word, []
    start = 0
    while start < len(rest):
        ends = range(min(len(rest), start + longest), start, -1)
        end = next((end for end in ends if rest[start:end] in ids), None)
        if end is None:
            return (unknown,)
        found.append(ids[rest[start:end]])
        start = end
    return tuple(found)
