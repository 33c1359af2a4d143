"""Small vocabularies, as the metadata of a file."""

from __future__ import annotations

from typing import Any

import numpy as np

from puna.gguf import Metadata
from puna.tokenizer import Tokenizer

__all__ = [
    "BYTE",
    "CONTROL",
    "HELLO",
    "NORMAL",
    "UNKNOWN",
    "USER",
    "byte_pair",
    "letters",
    "metadata",
    "sentence_piece",
    "texts",
]

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
GPT2_BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]


def byte_characters() -> list[str]:
    rest = iter(range(0x100, 0x200))
    return [chr(b if b in GPT2_BYTES else next(rest)) for b in range(256)]


def byte_pair(rules: str, special: dict[str, int] | None = None, **keys: Any) -> Metadata:
    """A byte-level vocabulary: the 256 bytes, what the merges (`a+b`) make, special tokens."""
    pairs = [tuple(pair.split("+")) for pair in rules.split()]
    special = {"<|end|>": CONTROL, "<tool>": USER, "<|im_start|>": CONTROL} if special is None else special
    tokens = list(dict.fromkeys([*byte_characters(), *(a + b for a, b in pairs), *special]))
    kinds = [special.get(token, NORMAL) for token in tokens]
    values = {"pre": "gpt-2", "merges": [f"{a} {b}" for a, b in pairs], **keys}
    return metadata("gpt2", tokens, kinds, **values)


def sentence_piece(pieces: dict[str, float], special: dict[str, int] | None = None, **keys: Any) -> Metadata:
    """A SentencePiece vocabulary: unknown, BOS, EOS, the 256 bytes, pieces with scores, special tokens."""
    special = {} if special is None else special
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces, *special]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), *special.values()]
    scores = [0.0] * 259 + list(pieces.values()) + [0.0] * len(special)
    return metadata("llama", tokens, kinds, scores=np.array(scores, np.float32), **keys)


def metadata(model: str, tokens: list[str], kinds: list[int], **keys: Any) -> Metadata:
    values = {"model": model, "tokens": tokens, "token_type": np.array(kinds, np.int32), **keys}
    full = {key if "." in key else f"tokenizer.ggml.{key}": value for key, value in values.items()}
    return Metadata.of({key: value for key, value in full.items() if value is not None}, "model.gguf")


def letters(**scores: float) -> dict[str, float]:
    """Single letters far down, and pieces with the scores given."""
    return {**dict.fromkeys("▁abcdehlorw", -100.0), **scores}


HELLO = "h+e l+l he+ll hell+o Ġ+w Ġw+o"


def texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(token) for token in ids]
