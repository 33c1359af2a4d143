"""Decoding one id at a time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import CONTROL, HELLO, byte_pair, letters, sentence_piece

from puna.errors import RequestError
from puna.tokenizer import Tokenizer, load

FAMILY = "👨‍👩‍👧"
BYTE_LEVEL = load(byte_pair(HELLO))
PIECES = load(sentence_piece(letters(), {"<|x|>": CONTROL}))


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, PIECES], ids=["bytes", "pieces"])
def test_no_half_characters(tokenizer: Tokenizer) -> None:
    """A character of several tokens comes out with its last one."""
    decoder = tokenizer.decoder()
    texts = [decoder.push(token) for token in tokenizer.encode("é" + FAMILY, add_special=False)]
    assert [text for text in texts if text] == ["é", *FAMILY]
    assert decoder.finish() == ""


@settings(max_examples=200, deadline=None)
@given(st.data(), st.booleans(), st.booleans(), st.sampled_from([BYTE_LEVEL, PIECES]))
def test_stream_equals_decode(data: st.DataObject, skip: bool, continues: bool, tokenizer: Tokenizer) -> None:
    """The texts that a stream gives are together what decode gives for the same ids, however senseless."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    decoder = tokenizer.decoder(skip, continues)
    streamed = "".join([decoder.push(token) for token in ids]) + decoder.finish()
    assert streamed == tokenizer.decode(ids, skip, continues)
    shown = [token for token in ids if not (skip and tokenizer.is_special(token))]
    whole = b"".join(map(tokenizer.piece, shown)).decode("utf-8", "replace")
    assert streamed in ({whole} if continues or tokenizer is BYTE_LEVEL else {whole, whole.removeprefix(" ")})


def test_what_never_becomes_a_character_is_replaced() -> None:
    """Bytes that a stream still holds at its end come out as U+FFFD."""
    decoder = PIECES.decoder()
    assert decoder.push(PIECES.token_id("<0xF0>") or 0) == ""
    assert decoder.finish() == "\ufffd"


def test_ids_out_of_range_are_refused() -> None:
    """An id outside the vocabulary is a RequestError."""
    with pytest.raises(RequestError, match="outside the vocabulary"):
        PIECES.decoder().push(PIECES.vocab_size)
