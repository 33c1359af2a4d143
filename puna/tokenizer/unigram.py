"""Unigram models: of all the ways to cut a text into pieces, the likeliest.

The sentencepiece library reads a model proto written from the GGUF's pieces and its table of replaced characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from puna.errors import TokenizerError
from puna.tokenizer.sentence_piece import SPACE, message, model_proto, number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.tokenizer.tokens import TokenTable

__all__ = ["Unigram"]

UNIGRAM = 1  # TrainerSpec.ModelType
CHARSMAP, SPACE_PREFIX, MERGE_SPACES, ESCAPE_SPACES = 2, 3, 4, 5  # fields of NormalizerSpec


class Unigram:
    """Text to ids and back for `tokenizer.ggml.model` = t5."""

    def __init__(
        self,
        vocabulary: TokenTable,
        scores: NDArray[Any],
        charsmap: bytes,
        *,
        space_prefix: bool,
        merges_spaces: bool,
    ) -> None:
        """scores: [tokens]. Raises TokenizerError where the library refuses the pieces or the table."""
        from sentencepiece import SentencePieceProcessor

        check_charsmap(charsmap, vocabulary.where)
        rules = message(CHARSMAP, charsmap) if charsmap else b""
        rules += number(SPACE_PREFIX, space_prefix) + number(MERGE_SPACES, merges_spaces)
        rules += number(ESCAPE_SPACES, 1)
        self._model = SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(model_proto(vocabulary, scores, UNIGRAM, rules))
        except RuntimeError as error:
            raise TokenizerError(
                f"sentencepiece refuses the pieces: {error}", where=vocabulary.where
            ) from error

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._model.encode(text)
        return ids

    def plain(self, text: str) -> bytes:
        """The bytes that a normal token stands for."""
        return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")


def check_charsmap(charsmap: bytes, where: str) -> None:
    """Raise TokenizerError unless no look-up in a table of replaced characters can leave it.

    u32 bytes of the trie; its units, u32; the replacements, each ended by a zero byte. Of a unit, bits 10 to 30,
    shifted by 8 where bit 9 is set, lead to its children; one with bit 31 holds the place of a replacement.
    Format: https://github.com/google/sentencepiece/blob/master/src/normalizer.cc
    """
    if not charsmap:
        return
    size = int.from_bytes(charsmap[:4], "little")
    texts = charsmap[4 + size :]
    sound = len(charsmap) > 4 + size and size % 4 == 0 and size >= 1024 and texts[-1:] == b"\0"
    if sound:
        units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
        is_value = units >> 31 > 0
        children = (units >> 10 << ((units & 512) >> 6)) ^ np.arange(len(units))
        leads = ~is_value & (units != 0)
        sound = bool(((children[leads] | 255) < len(units)).all())
        sound &= bool(((units[is_value] & (1 << 31) - 1) < len(texts)).all())
    if not sound:
        raise TokenizerError("'tokenizer.ggml.precompiled_charsmap' is damaged", where=where)
