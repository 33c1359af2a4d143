"""Unigram models, against the sentencepiece library on a model that is trained here."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vocabularies import metadata

from puna.errors import TokenizerError
from puna.gguf import Metadata
from puna.tokenizer import load

TEXTS = (
    "Hello,  world!\n\n It's 12345.67",
    "naïve café ½ x² ﬁ ＡＢＣ",
    "  a  b ",
    "",
    " ",
    "我想在apple🚀🚀工作",
    "x\u3000y\tz",
    "</s> a",
)


@cache
def trained() -> tuple[Any, bytes]:
    """A model of Puna's documentation, and its table of replaced characters."""
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    pages = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()][:400]
    file = io.BytesIO()
    SentencePieceTrainer.Train(
        sentence_iterator=iter(lines),
        model_writer=file,
        model_type="unigram",
        vocab_size=300,
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    model = SentencePieceProcessor()
    model.LoadFromSerializedProto(file.getvalue())
    return model, field(field(file.getvalue(), 3), 2)


def field(message: bytes, number: int) -> bytes:
    """The first bytes field of that number in a protobuf message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        size = {0: 0, 1: 8, 5: 4}.get(key & 7)
        if size == 0:
            varint()
            continue
        size = varint() if size is None else size
        if key >> 3 == number:
            return message[at : at + size]
        at += size
    raise AssertionError(number)


def unigram(**keys: Any) -> Metadata:
    model, charsmap = trained()
    count = model.get_piece_size()
    kinds = [2 if model.is_unknown(i) else 3 if model.is_control(i) else 1 for i in range(count)]
    values = {
        "scores": np.array([model.get_score(i) for i in range(count)], np.float32),
        "precompiled_charsmap": np.frombuffer(charsmap, np.uint8),
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        **keys,
    }
    return metadata("t5", [model.id_to_piece(i) for i in range(count)], kinds, **values)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_sentencepieces(text: str) -> None:
    """The pieces and the table of a GGUF give the ids of the model that they are of."""
    assert load(unigram()).encode(text, add_special=False, parse_special=False) == trained()[0].encode(text)


def test_marks_and_spaces() -> None:
    """A text ends with EOS and begins with no mark; it comes back without the space before its first word."""
    tokenizer = load(unigram())
    ids = tokenizer.encode("a model")
    assert ids == [*trained()[0].encode("a model"), 1]
    assert tokenizer.decode(ids, skip_special=True) == "a model"


def test_spaces_can_stay() -> None:
    """Without the prefix and with all spaces, a text comes back as it was."""
    tokenizer = load(unigram(add_space_prefix=False, remove_extra_whitespaces=False))
    text = "  a   model "
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def damaged(charsmap: bytes, place: int, unit: int) -> bytes:
    units = np.frombuffer(charsmap, np.uint8).copy()
    units[4 + 4 * place : 8 + 4 * place] = np.array([unit], "<u4").view(np.uint8)
    return units.tobytes()


@pytest.mark.parametrize("how", ["short", "long", "text", "lead", "value"])
def test_a_damaged_table_is_refused(how: str) -> None:
    """A table whose look-ups would leave it is an error before the library reads it."""
    charsmap = trained()[1]
    size = int.from_bytes(charsmap[:4], "little")
    wrong = {
        "short": charsmap[: size // 2],
        "long": (size * 2).to_bytes(4, "little") + charsmap[4:],
        "text": charsmap[:-1] + b"x",
        "lead": damaged(charsmap, 0, (size // 4) << 10),
        "value": damaged(charsmap, 1, 1 << 31 | len(charsmap)),
    }[how]
    with pytest.raises(TokenizerError, match="precompiled_charsmap' is damaged"):
        load(unigram(precompiled_charsmap=np.frombuffer(wrong, np.uint8)))
