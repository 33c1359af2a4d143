"""tokenizer.model: SentencePiece's ModelProto, as far as a vocabulary needs it.

Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from puna.errors import FormatError

__all__ = ["ModelProto", "Piece", "read"]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType; 3 is words, 4 characters
NORMAL = 1
Field = tuple[int, "int | bytes"]


@dataclass(frozen=True)
class Piece:
    """kind: of `tokenizer.ggml.token_type`, which has SentencePiece's numbers."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class ModelProto:
    """A SentencePiece model.

    is_unigram: whether words are cut by the likeliest pieces, not merged from pairs.
    charsmap: the normaliser's table, empty where it changes nothing.
    space_prefix: a space goes before each text. one_space: runs of spaces become one, and those at the ends go.
    """

    pieces: tuple[Piece, ...]
    is_unigram: bool
    charsmap: bytes
    space_prefix: bool
    one_space: bool
    escapes_spaces: bool
    spaces_behind: bool
    has_bytes: bool


def read(raw: bytes, where: str) -> ModelProto:
    """A model from its file's bytes. Raises FormatError where they are none, or its kind cannot be used."""
    pieces: list[Piece] = []
    trainer, normalizer = dict[int, "int | bytes"](), dict[int, "int | bytes"]()
    sections = {2: trainer, 3: normalizer}
    try:
        for number, content in fields(raw):
            if number == 1 and isinstance(content, bytes):
                pieces.append(piece(content))
            elif number in sections and isinstance(content, bytes):
                sections[number].update(fields(content))
    except (ValueError, IndexError, struct.error):
        raise FormatError("this is no SentencePiece model", where=where, fix="download it again") from None
    if not pieces:
        raise FormatError("this is no SentencePiece model: it has no pieces", where=where)
    kind = trainer.get(3, UNIGRAM)
    if kind not in (UNIGRAM, BPE):
        raise FormatError(f"a SentencePiece model of type {kind!r} is neither BPE nor unigram", where=where)
    charsmap = normalizer.get(2, b"")
    return ModelProto(
        tuple(pieces),
        is_unigram=kind == UNIGRAM,
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        space_prefix=bool(normalizer.get(3, 1)),
        one_space=bool(normalizer.get(4, 1)),
        escapes_spaces=bool(normalizer.get(5, 1)),
        spaces_behind=bool(trainer.get(24, 0)),
        has_bytes=bool(trainer.get(35, 0)),
    )


def piece(raw: bytes) -> Piece:
    text, score, kind = "", 0.0, NORMAL
    for number, content in fields(raw):
        if number == 1 and isinstance(content, bytes):
            text = content.decode("utf-8")
        elif number == 2 and isinstance(content, bytes):
            (score,) = struct.unpack("<f", content)
        elif number == 3 and isinstance(content, int):
            kind = content
    if not 1 <= kind <= 6 or score != score:
        raise ValueError
    return Piece(text, score, kind)


def fields(raw: bytes) -> Iterator[Field]:
    """The fields of a message: numbers as int, all else as the bytes that it takes."""
    position, end = 0, len(raw)
    while position < end:
        tag, position = varint(raw, position)
        kind = tag & 7
        if kind == VARINT:
            value, position = varint(raw, position)
            yield tag >> 3, value
            continue
        if kind == BYTES:
            length, position = varint(raw, position)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise ValueError
        if length > end - position:
            raise ValueError
        yield tag >> 3, raw[position : position + length]
        position += length


def varint(raw: bytes, position: int) -> tuple[int, int]:
    """A number, least significant seven bits first, and where it ends."""
    value = shift = 0
    while True:
        byte = raw[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError
