"""SentencePiece models: pairs merged by the score of what they make, and bytes for what no piece covers.

A model proto is written from the GGUF's pieces, scores and kinds, and the sentencepiece library reads it. Format:
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from puna.errors import TokenizerError
from puna.tokenizer.tokens import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.tokenizer.tokens import TokenTable

__all__ = ["SPACE", "SentencePiece", "message", "model_proto", "number"]

SPACE = "\u2581"
BPE = 2  # TrainerSpec.ModelType
# score: field 2, a float. kind: field 3, a varint.
TAIL = np.dtype([("score_tag", "u1"), ("score", "<f4"), ("kind_tag", "u1"), ("kind", "u1")])


class SentencePiece:
    """Text to ids and back for `tokenizer.ggml.model` = llama. Spaces are kept in pieces as U+2581."""

    def __init__(self, vocabulary: TokenTable, scores: NDArray[Any]) -> None:
        """scores: [tokens]. Raises TokenizerError where the library refuses the pieces."""
        from sentencepiece import SentencePieceProcessor

        self._model = SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(model_proto(vocabulary, scores))
        except RuntimeError as error:
            raise TokenizerError(
                f"sentencepiece refuses the pieces: {error}", where=vocabulary.where
            ) from error

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._model.encode(text.replace(" ", SPACE))
        return ids

    def plain(self, text: str) -> bytes:
        """The bytes that a normal token stands for."""
        return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")


def model_proto(vocabulary: TokenTable, scores: NDArray[Any], kind: int = BPE, rules: bytes = b"") -> bytes:
    """A ModelProto: the pieces, a trainer spec, and a normalizer spec, which changes nothing unless it has rules.

    kind: of TrainerSpec.ModelType.  rules: fields of the normalizer spec.
    """
    kinds, unknown, fallback = piece_kinds(vocabulary)
    pieces = [text.encode("utf-8", "surrogateescape") for text in vocabulary.texts]
    tails: NDArray[Any] = np.empty(len(pieces), TAIL)
    tails["score_tag"], tails["kind_tag"] = 2 << 3 | 5, 3 << 3
    tails["score"], tails["kind"] = scores, kinds
    if unknown == len(pieces):  # a piece that no text reaches, since the library asks for one
        pieces.append(max(pieces, key=len) + b"?")
        tails = np.append(
            tails, np.array([(tails[0]["score_tag"], 0, tails[0]["kind_tag"], Kind.UNKNOWN)], TAIL)
        )
    tail_bytes, width = tails.tobytes(), TAIL.itemsize
    heads = [piece_head(length) for length in range(max(map(len, pieces)) + 1)]
    body = b"".join(
        [heads[len(p)] + p + tail_bytes[width * i : width * (i + 1)] for i, p in enumerate(pieces)]
    )
    trainer = number(3, kind) + number(35, fallback) + number(40, unknown)
    trainer += b"".join(number(field, (1 << 64) - 1) for field in (41, 42, 43))  # BOS, EOS and PAD: none
    normalizer = message(1, b"identity") + b"".join(number(field, 0) for field in (3, 4, 5)) + rules
    return body + message(2, trainer) + message(3, normalizer)


def piece_kinds(vocabulary: TokenTable) -> tuple[NDArray[Any], int, bool]:
    """The kind of each piece, the id of the unknown one, and whether there is a piece for every byte.

    Special tokens are cut out of a text before it comes here, so that those a text may hold are normal here.
    """
    kinds = np.frombuffer(vocabulary.kinds, np.uint8).copy()
    unknowns = np.flatnonzero(kinds == Kind.UNKNOWN)
    unknown = vocabulary.meaning.get("unk", len(kinds))
    unknown = int(unknowns[0]) if len(unknowns) and unknown not in unknowns else unknown
    kinds[unknowns] = Kind.CONTROL
    kinds[np.isin(kinds, (Kind.USER_DEFINED, Kind.UNUSED, Kind.UNDEFINED, Kind.BYTE))] = Kind.NORMAL
    if unknown < len(kinds):
        kinds[unknown] = Kind.UNKNOWN
    bytes_ = [vocabulary.ids.get(f"<0x{byte:02X}>") for byte in range(256)]
    fallback = None not in bytes_
    if fallback:
        kinds[np.array(bytes_)] = Kind.BYTE
    return kinds, unknown, fallback


def piece_head(length: int) -> bytes:
    """What precedes a piece of `length` bytes: the tags and lengths of the SentencePiece and of its text."""
    inner = b"\x0a" + varint(length)
    return b"\x0a" + varint(len(inner) + length + TAIL.itemsize) + inner


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content
