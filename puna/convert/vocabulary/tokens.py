"""Tokens as a folder's files have them: texts, kinds, and the tokens that were added to a tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from puna.convert.folder import Folder
from puna.convert.typed import text as string
from puna.errors import FormatError, TokenizerError
from puna.gguf import Value, ValueType
from puna.tokenizer.tokens import PREFIX, Kind

__all__ = ["Added", "Table", "added_tokens", "looks_special", "reversed_ids"]

SPACE = "\u2581"
MOST_TOKENS = 1 << 22
PADDING_SCORE, ADDED_SCORE = -10000.0, -1000.0
# Added tokens that are control tokens although their files do not say so, as llama.cpp has it.
SPECIAL_TEXTS = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
SPECIAL_FORMS = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


@dataclass(frozen=True)
class Added:
    """A token that was added to a tokenizer. strips: it takes the spaces beside it."""

    id: int
    text: str
    special: bool
    strips: bool


@dataclass
class Table:
    """Tokens by id. spaces: whether pieces have spaces as U+2581. scores: None where merges are listed."""

    texts: dict[int, str]
    kinds: dict[int, Kind]
    scores: dict[int, float] | None = None
    spaces: bool = False
    notes: list[str] = field(default_factory=list)

    def add(self, tokens: Mapping[int, Added]) -> None:
        """Put the added tokens in their places."""
        for token in tokens.values():
            special = token.special or looks_special(token.text)
            # A user-defined token is looked for in the text itself, where spaces are spaces.
            text = token.text if special or not self.spaces else token.text.replace(SPACE, " ")
            if self.kinds.get(token.id) is not Kind.UNKNOWN:
                self.kinds[token.id] = Kind.CONTROL if special else Kind.USER_DEFINED
            self.texts[token.id] = text
            if self.scores is not None:
                self.scores[token.id] = ADDED_SCORE
        strips = sum(token.strips for token in tokens.values())
        if strips:
            self.notes.append(
                f"{strips} added tokens take the spaces beside them, which a GGUF file cannot say"
            )

    def ids(self) -> dict[str, int]:
        """The id of each text."""
        return {text: token for token, text in self.texts.items()}

    def keys(self, size: int) -> dict[str, Value]:
        """As metadata, with `size` tokens: gaps are filled with unused tokens, what lies beyond is left out."""
        if size > MOST_TOKENS:
            raise TokenizerError(f"{size} tokens are over the limit of {MOST_TOKENS}")
        beyond = sum(token >= size for token in self.texts)
        if beyond:
            self.notes.append(
                f"{beyond} tokens from id {size} on are left out: the model has no rows for them"
            )
        texts = [self.texts.get(token, f"[PAD{token}]") for token in range(size)]
        self.refuse_doubles(texts)
        kinds = [int(self.kinds.get(token, Kind.UNUSED)) for token in range(size)]
        keys = {
            PREFIX + "tokens": Value(ValueType.STRING, texts),
            PREFIX + "token_type": Value(ValueType.INT32, kinds),
        }
        if self.scores is not None:
            scores = [self.scores.get(token, PADDING_SCORE) for token in range(size)]
            keys[PREFIX + "scores"] = Value(ValueType.FLOAT32, scores)
        return keys

    def refuse_doubles(self, texts: list[str]) -> None:
        if len(set(texts)) == len(texts):
            return
        seen: dict[str, int] = {}
        for token, text in enumerate(texts):
            if text in seen:
                raise TokenizerError(f"tokens {seen[text]} and {token} are both {text!r}")
            seen[text] = token


def looks_special(text: str) -> bool:
    """Whether a token is a control token by its text."""
    forms = any(text.startswith(start) and text.endswith(end) for start, end in SPECIAL_FORMS)
    return forms or text in SPECIAL_TEXTS


def added_tokens(folder: Folder, tokenizer: Mapping[str, Any] | None) -> dict[int, Added]:
    """Tokens by id, from tokenizer.json, then tokenizer_config.json, then added_tokens.json."""
    found: dict[int, Added] = {}
    for token in listed(folder, tokenizer):
        found.setdefault(token.id, token)
    return dict(sorted(found.items()))


def listed(folder: Folder, tokenizer: Mapping[str, Any] | None) -> Iterator[Added]:
    for entry in items((tokenizer or {}).get("added_tokens")):
        if isinstance(entry, dict):
            yield added(entry.get("id"), entry, folder.where("tokenizer.json"))
    settings = folder.json("tokenizer_config.json") or {}
    decoder = settings.get("added_tokens_decoder")
    for number, entry in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(entry, dict):
            token = int(number) if number.isdecimal() and len(number) < 10 else None
            yield added(token, entry, folder.where("tokenizer_config.json"))
    for text, number in (folder.json("added_tokens.json") or {}).items():
        yield added(number, {"content": text}, folder.where("added_tokens.json"))


def items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def added(token: Any, entry: Mapping[str, Any], where: str) -> Added:
    text = entry.get("content")
    if type(token) is not int or not 0 <= token < MOST_TOKENS or not isinstance(text, str):
        raise FormatError(f"an added token has the id {token!r} and the text {str(text)[:40]!r}", where=where)
    strips = any(entry.get(side) is True for side in ("lstrip", "rstrip"))
    return Added(token, text, entry.get("special") is True, strips)


def reversed_ids(vocabulary: Any, where: str) -> dict[int, str]:
    """tokenizer.json's text -> id as id -> text. Raises FormatError where it is not sound."""
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise FormatError("the vocabulary ('model.vocab') is missing", where=where)
    texts = {
        token: text for text, token in vocabulary.items() if type(token) is int and 0 <= token < MOST_TOKENS
    }
    if len(texts) != len(vocabulary):
        raise FormatError("'model.vocab' has an id twice, or one that is no whole number", where=where)
    return texts


def kind_keys(kind: str, pre: str) -> dict[str, Value]:
    """The kind of tokenizer and its pre-tokenizer."""
    return {PREFIX + "model": string(kind), PREFIX + "pre": string(pre)}
