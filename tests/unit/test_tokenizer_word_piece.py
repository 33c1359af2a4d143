"""WordPiece: BERT's words, covered by the longest pieces; over small vocabularies built here."""

from __future__ import annotations

import time
from typing import Any

import pytest
from vocabularies import CONTROL, NORMAL, UNKNOWN, metadata, texts

from puna.errors import TokenizerError
from puna.gguf import Metadata
from puna.tokenizer import load

MARKS = {"[PAD]": CONTROL, "[UNK]": UNKNOWN, "[CLS]": CONTROL, "[SEP]": CONTROL, "[MASK]": CONTROL}
IDS = {"padding": 0, "unknown": 1, "bos": 2, "seperator": 3, "mask": 4}


def word_piece(*pieces: str, **keys: Any) -> Metadata:
    ids = {f"{name}_token_id": token for name, token in IDS.items()}
    tokens = [*MARKS, *pieces]
    return metadata("bert", tokens, [*MARKS.values(), *[NORMAL] * len(pieces)], **{**ids, **keys})


def cut(file: Metadata, text: str) -> list[str]:
    tokenizer = load(file)
    return texts(tokenizer, tokenizer.encode(text, add_special=False))


def test_longest_pieces_from_the_left() -> None:
    """The longest beginning of a word is taken first, then the longest of the rest."""
    file = word_piece("▁em", "▁embed", "bed", "ding", "d", "ing", "▁s")
    assert cut(file, "embedding embeds") == ["▁embed", "ding", "[UNK]"]


def test_a_word_that_is_not_covered_is_unknown() -> None:
    """One character that no piece covers makes the whole word unknown, and no other."""
    file = word_piece("▁a", "b", "▁c")
    assert cut(file, "ab abx c") == ["▁a", "b", "[UNK]", "▁c"]


def test_words_are_berts() -> None:
    """Punctuation and Chinese characters are words; case and accents go; control characters are nothing."""
    file = word_piece("▁cafe", "▁,", "▁工", "▁作", "▁$")
    assert cut(file, "Café,\u200b CAFE\x00 工作 $") == ["▁cafe", "▁,", "▁cafe", "▁工", "▁作", "▁$"]


def test_case_and_accents_can_stay() -> None:
    """A file may say that case counts, and accents with it unless it says otherwise."""
    pieces = ("▁Café", "▁cafe", "▁Cafe")
    assert cut(word_piece(*pieces), "Café") == ["▁cafe"]
    cased = {"normalizer.lowercase": False}
    cased = {f"tokenizer.ggml.{key}": value for key, value in cased.items()}
    assert cut(word_piece(*pieces, **cased), "Café") == ["▁Café"]
    stripped = {**cased, "tokenizer.ggml.normalizer.strip_accents": True}
    assert cut(word_piece(*pieces, **stripped), "Café") == ["▁Cafe"]


def test_marks_are_added_and_left_out() -> None:
    """A text stands between CLS and SEP; decoding leaves them out, and the space before the first word."""
    tokenizer = load(word_piece("▁a", "b", "▁c"))
    ids = tokenizer.encode("ab c")
    assert texts(tokenizer, ids) == ["[CLS]", "▁a", "b", "▁c", "[SEP]"]
    assert tokenizer.decode(ids, skip_special=True) == "ab c"
    assert texts(tokenizer, tokenizer.encode("a[SEP]c", add_special=False)) == ["▁a", "[SEP]", "▁c"]


def test_the_older_name_of_the_first_mark() -> None:
    """Files that name CLS and no BOS begin with that."""
    tokenizer = load(word_piece("▁a", bos_token_id=None, cls_token_id=4))
    assert texts(tokenizer, tokenizer.encode("a")) == ["[MASK]", "▁a", "[SEP]"]


@pytest.mark.parametrize("name", ["unknown", "seperator", "bos"])
def test_missing_marks_are_refused(name: str) -> None:
    """A vocabulary without a mark that texts need is refused, naming the key."""
    with pytest.raises(TokenizerError, match=f"tokenizer.ggml.{name}_token_id.*missing"):
        load(word_piece("▁a", **{f"{name}_token_id": None}))


def test_long_pieces_are_refused() -> None:
    """Pieces so long that words would take long to cut are an error of the file."""
    with pytest.raises(TokenizerError, match="a piece has 257 characters, and 256 are the most"):
        load(word_piece("a" * 257))


def test_a_long_word_takes_linear_time() -> None:
    """A word of a million characters is cut in seconds: time grows with its length, not with its square."""
    tokenizer = load(word_piece("▁a", "a"))
    start = time.perf_counter()
    assert len(tokenizer.encode("a" * 1_000_000, add_special=False)) == 1_000_000
    assert time.perf_counter() - start < 20
