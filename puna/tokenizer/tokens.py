"""A vocabulary as GGUF metadata carries it: token texts and kinds, checked; and its tokens with a meaning.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (section "Tokenizer").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from puna.errors import TokenizerError
from puna.gguf import Metadata

__all__ = ["ID_KEYS", "PREFIX", "Kind", "TokenTable"]

PREFIX = "tokenizer.ggml."


class Kind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# What each meaning is called in a file; the later names of a meaning are deprecated.
ID_KEYS: Mapping[str, tuple[str, ...]] = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "sep": ("seperator_token_id",),
    "pad": ("padding_token_id",),
    "mask": ("mask_token_id",),
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}
# A file that leaves a meaning out is searched for these texts, the first one winning.
TEXTS: Mapping[str, tuple[str, ...]] = {
    "eot": (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
# Texts that end a generation wherever a vocabulary has them, as llama.cpp has it.
END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)
END_MEANINGS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# Parts of a message that a reader of gpt-oss's output needs to see.
SHOWN_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# Where a vocabulary has all of the first texts as ends, the second is none, and has another kind.
NO_ENDS: tuple[tuple[frozenset[str], str, Kind], ...] = (
    (frozenset({"<|return|>", "<|call|>"}), "<|end|>", Kind.USER_DEFINED),
    (frozenset({"<|call|>", "<|flush|>"}), "<|end|>", Kind.USER_DEFINED),
    (frozenset({"<|calls|>", "<|flush|>"}), "<|end|>", Kind.USER_DEFINED),
    (frozenset({"<|return|>", "<|calls|>"}), "<|end|>", Kind.USER_DEFINED),
    (frozenset({"<|tool_response>"}), "</s>", Kind.NORMAL),
)


@dataclass(frozen=True)
class TokenTable:
    """The tokens of a model.

    where: the file, for errors. texts: of each id; bytes that are not UTF-8 stand as surrogate escapes.
    kinds: one byte of Kind for each id. ids: of each text. meaning: ids by the names of ID_KEYS.
    ends: the ids that end a generation. notes: what was odd about the file, a line each.
    """

    where: str
    texts: tuple[str, ...]
    kinds: bytes
    ids: Mapping[str, int]
    meaning: Mapping[str, int]
    ends: frozenset[int]
    notes: tuple[str, ...]

    @classmethod
    def read(cls, metadata: Metadata, defaults: Mapping[str, int]) -> TokenTable:
        """From metadata; `defaults` are ids by meaning. Raises TokenizerError, naming the key."""
        key = PREFIX + "tokens"
        if key not in metadata:
            raise TokenizerError(f"the vocabulary ({key!r}) is missing", where=metadata.where)
        texts = tuple(text or f"[EMPTY_{i}]" for i, text in enumerate(metadata.strings(key)))
        if not texts:
            raise TokenizerError(f"{key!r} holds no tokens", where=metadata.where)
        ids = {text: token for token, text in enumerate(texts)}
        if len(ids) != len(texts):
            first, text = next((i, t) for i, t in enumerate(texts) if ids[t] != i)
            what = f"{key!r} holds {text!r} twice, as tokens {first} and {ids[text]}"
            raise TokenizerError(what, where=metadata.where)
        kinds = bytearray(read_kinds(metadata, len(texts)))
        notes: list[str] = []
        meaning = read_meaning(metadata, len(texts), defaults, notes)
        ends = find_meaning(ids, kinds, meaning)
        return cls(metadata.where, texts, bytes(kinds), ids, meaning, ends, tuple(notes))

    def __len__(self) -> int:
        return len(self.texts)

    def of_kind(self, *kinds: Kind) -> list[int]:
        """The ids of these kinds, ascending."""
        held = np.frombuffer(self.kinds, np.uint8)
        return [int(token) for token in np.flatnonzero(np.isin(held, kinds))]


def read_kinds(metadata: Metadata, count: int) -> bytes:
    key = PREFIX + "token_type"
    if key not in metadata:
        return bytes([Kind.NORMAL]) * count
    kinds = metadata.integers(key)
    if len(kinds) != count:
        raise TokenizerError(f"{key!r} has {len(kinds)} entries for {count} tokens", where=metadata.where)
    known = (kinds >= min(Kind)) & (kinds <= max(Kind))
    return np.where(known, kinds, Kind.UNDEFINED).astype(np.uint8).tobytes()


def read_meaning(
    metadata: Metadata, count: int, defaults: Mapping[str, int], notes: list[str]
) -> dict[str, int]:
    meaning = {name: token for name, token in defaults.items() if token < count}
    for name, keys in ID_KEYS.items():
        for key in reversed(keys):
            token = metadata.integer(PREFIX + key, default=None)
            if token is None:
                continue
            if 0 <= token < count:
                meaning[name] = token
            elif name in {"bos", "eos"}:
                what = f"{PREFIX + key!r} is {token}, outside the vocabulary of {count} tokens"
                raise TokenizerError(what, where=metadata.where)
            else:
                notes.append(
                    f"{PREFIX + key!r} is {token}, outside the vocabulary of {count} tokens: ignored"
                )
    return meaning


def find_meaning(ids: Mapping[str, int], kinds: bytearray, meaning: dict[str, int]) -> frozenset[int]:
    """Complete `meaning` and `kinds` by the tokens' texts, by llama.cpp's rules; the ids of the ends."""
    for name, texts in TEXTS.items():
        found = next((ids[text] for text in texts if text in ids), None)
        if name not in meaning and found is not None:
            meaning[name] = found
            kinds[found] = Kind.CONTROL
    ends = {ids[text] for text in END_TEXTS if text in ids}
    for token in ends:
        kinds[token] = Kind.CONTROL
    for text in SHOWN_TEXTS:
        if text in ids:
            kinds[ids[text]] = Kind.USER_DEFINED
    ends |= {meaning[name] for name in END_MEANINGS if name in meaning}
    held = {text for text in END_TEXTS if ids.get(text) in ends}
    for present, text, kind in NO_ENDS:
        if present <= held and text in held:
            ends.discard(ids[text])
            kinds[ids[text]] = kind
    return frozenset(ends)
