"""The tokenizer of a model: text to ids and ids to text, as llama.cpp does it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from puna.errors import RequestError, TokenizerError
from puna.gguf import Metadata
from puna.tokenizer.byte_pair import MERGES_KEY, BytePair
from puna.tokenizer.partition import Partition, stripping
from puna.tokenizer.pre import PRE, Pre
from puna.tokenizer.sentence_piece import SentencePiece
from puna.tokenizer.stream import StreamDecoder
from puna.tokenizer.tokens import ID_KEYS, PREFIX, Kind, TokenTable
from puna.tokenizer.unigram import Unigram
from puna.tokenizer.word_piece import WordPiece

__all__ = ["Tokenizer", "load"]

TEMPLATE_KEY = "tokenizer.chat_template"
HIDDEN = (Kind.CONTROL, Kind.UNKNOWN)
AS_TEXT = (*HIDDEN, Kind.USER_DEFINED)


class Model(Protocol):
    """What tokenizes text without special tokens, and what its normal tokens stand for."""

    def encode(self, text: str) -> list[int]: ...

    def plain(self, text: str) -> bytes: ...


class Tokenizer:
    """Text to ids and back for one vocabulary.

    bos, eos, eot, unk, pad: ids, None where the model has none. end_ids: ids that end a generation.
    meaning: all ids with a meaning, by name (also eom, sep, mask, fim_pre, fim_suf, fim_mid, ...).
    add_bos, add_eos: whether `encode` adds them. add_sep: whether an encoder model wants a separator.
    closing: the id of the separator that `encode` puts last, None where it puts none.
    chat_template: Jinja, None where the model has none. chat_templates: by name, that one as "default".
    notes: what was odd about the file, a line each.
    """

    def __init__(
        self,
        vocabulary: TokenTable,
        model: Model,
        metadata: Metadata,
        *,
        add_bos: bool,
        add_eos: bool = False,
        add_sep: bool = False,
        space_prefix: bool = False,
        closes: bool = False,
        strips: bool = False,
        notes: Iterable[str] = (),
    ) -> None:
        """closes: a text ends with SEP.  strips: a decoded text begins without the space of its first token."""
        self._vocabulary, self._model, self._space_prefix = vocabulary, model, space_prefix
        self._strips = strips or space_prefix
        self._partition = Partition(vocabulary, *stripping(vocabulary, metadata))
        self.meaning = meaning = vocabulary.meaning
        self.bos, self.eos, self.eot = meaning.get("bos"), meaning.get("eos"), meaning.get("eot")
        self.unk, self.pad = meaning.get("unk"), meaning.get("pad")
        self.end_ids = vocabulary.ends
        self.add_bos = is_added(metadata, "bos", meaning, default=add_bos)
        self.add_eos = is_added(metadata, "eos", meaning, default=add_eos)
        self.add_sep = metadata.boolean(PREFIX + "add_sep_token", default=add_sep)
        self.closing = meaning.get("sep") if closes else None
        self.chat_templates = chat_templates(metadata)
        self.chat_template = self.chat_templates.get("default")
        self.notes = (*vocabulary.notes, *notes)

    @property
    def vocab_size(self) -> int:
        return len(self._vocabulary)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a text.

        add_special: add BOS and EOS where the model wants them.
        parse_special: control tokens in the text become their ids; else they are plain text. User-defined tokens
        always become their ids. Lone surrogates are read as U+FFFD.
        """
        ids = [self.bos] if add_special and self.add_bos and self.bos is not None else []
        after_special = True
        for part in self._partition.split(without_surrogates(text), parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._model.encode(" " + part if self._space_prefix and after_special else part)
            after_special = isinstance(part, int)
        if add_special and self.closing is not None:
            ids.append(self.closing)
        if add_special and self.add_eos and self.eos is not None:
            ids.append(self.eos)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False, continues: bool = False) -> str:
        """The text of ids. Bytes that are not UTF-8 become U+FFFD.

        skip_special: leave out control and unknown tokens.
        continues: the ids go on from other text; else the space that `encode` put first is taken off.
        Raises RequestError where an id is not in the vocabulary.
        """
        decoder = self.decoder(skip_special, continues)
        return "".join([decoder.push(token) for token in ids]) + decoder.finish()

    def decoder(self, skip_special: bool = False, continues: bool = False) -> StreamDecoder:
        """Decodes ids one at a time, as `decode` does all at once."""
        strip_space = self._strips and not continues
        return StreamDecoder(self, skip_special=skip_special, strip_space=strip_space)

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for, the text of a special token included."""
        text, kind = self.token_text(token), self._vocabulary.kinds[token]
        if kind in AS_TEXT:
            return text.encode("utf-8", "surrogateescape")
        if kind == Kind.NORMAL:
            return self._model.plain(text)
        return byte_of(text) if kind == Kind.BYTE else b""

    def token_text(self, token: int) -> str:
        """The token as the vocabulary writes it. Raises RequestError where the id is not in it."""
        if not 0 <= token < self.vocab_size:
            raise RequestError(
                f"token id {token} is outside the vocabulary of {self.vocab_size} tokens",
                fix="use ids of this model's tokenizer",
            )
        return self._vocabulary.texts[token]

    def token_id(self, text: str) -> int | None:
        """The id of the token that the vocabulary writes so."""
        return self._vocabulary.ids.get(text)

    def is_special(self, token: int) -> bool:
        """Whether the token is a control or unknown token: no part of the text."""
        self.token_text(token)
        return self._vocabulary.kinds[token] in HIDDEN


def without_surrogates(text: str) -> str:
    """Pairs joined, lone ones replaced: text that has a UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def byte_of(text: str) -> bytes:
    """Of a byte token, written <0x0A>."""
    try:
        return bytes.fromhex(text[3:5])
    except ValueError:
        return text.encode("utf-8", "surrogateescape")


def is_added(metadata: Metadata, name: str, meaning: Mapping[str, int], *, default: bool) -> bool:
    key = f"{PREFIX}add_{name}_token"
    added = metadata.boolean(key, default=default)
    if added and name not in meaning:
        what = f"{name.upper()} is to be added to texts, but {PREFIX + ID_KEYS[name][0]!r} is missing"
        raise TokenizerError(what, where=metadata.where, fix=f"set {key!r} to false")
    return added


def chat_templates(metadata: Metadata) -> Mapping[str, str]:
    named = {
        key.removeprefix(TEMPLATE_KEY + "."): metadata.string(key)
        for key in metadata
        if key.startswith(TEMPLATE_KEY + ".")
    }
    default = metadata.string(TEMPLATE_KEY, default=None)
    return named if default is None else {**named, "default": default}


def load_gpt2(metadata: Metadata) -> Tokenizer:
    key, notes = PREFIX + "pre", []
    if key not in metadata:
        notes.append(f"{key!r} is missing: pre-tokenizer 'default' is used, which may not be the model's")
    pre = find_pre(metadata, metadata.string(key, default="default"))
    defaults = {"bos": 11, "eos": 11} if pre.default_bos else {"eos": 11}
    return load_byte_pair(metadata, pre, defaults, notes)


def load_gemma4(metadata: Metadata) -> Tokenizer:
    return load_byte_pair(metadata, PRE["gemma4"], {}, [])


def load_byte_pair(metadata: Metadata, pre: Pre, defaults: Mapping[str, int], notes: list[str]) -> Tokenizer:
    if MERGES_KEY not in metadata:
        raise TokenizerError(f"the merges ({MERGES_KEY!r}) are missing", where=metadata.where)
    vocabulary = TokenTable.read(metadata, defaults)
    model = BytePair(vocabulary, pre, metadata.strings(MERGES_KEY))
    notes += model.notes
    tokenizer = Tokenizer(vocabulary, model, metadata, add_bos=pre.add_bos, add_sep=pre.add_sep, notes=notes)
    if pre.gemma4 and not tokenizer.add_bos and tokenizer.bos is not None:
        tokenizer.add_bos = True
        tokenizer.notes += (
            f"{PREFIX + 'add_bos_token'!r} is false: BOS is added all the same, as Gemma 4 needs it",
        )
    return tokenizer


def find_pre(metadata: Metadata, name: str) -> Pre:
    if name not in PRE:
        nearest = difflib.get_close_matches(name, PRE, n=3, cutoff=0.3)
        raise TokenizerError(
            f"pre-tokenizer {name!r} ({PREFIX + 'pre'!r}) is unknown",
            where=metadata.where,
            fix=f"the nearest known are {', '.join(nearest or PRE)}",
        )
    return PRE[name]


def load_word_piece(metadata: Metadata) -> Tokenizer:
    start = metadata.integer(PREFIX + "cls_token_id", default=101)  # files that have it have no BOS
    defaults = {"bos": start, "unk": 100, "sep": 102, "pad": 0, "mask": 103}
    vocabulary = TokenTable.read(metadata, defaults if start >= 0 else {})
    lost = next((name for name in ("bos", "sep", "unk") if name not in vocabulary.meaning), None)
    if lost:
        what = f"a text needs the token that {PREFIX + ID_KEYS[lost][0]!r} names, and it is missing"
        raise TokenizerError(what, where=metadata.where)
    lowercase = metadata.boolean(PREFIX + "normalizer.lowercase", default=True)
    strips = metadata.boolean(PREFIX + "normalizer.strip_accents", default=lowercase)
    model = WordPiece(vocabulary, lowercase=lowercase, strip_accents=strips)
    return Tokenizer(vocabulary, model, metadata, add_bos=True, add_sep=True, closes=True, strips=True)


def load_unigram(metadata: Metadata) -> Tokenizer:
    vocabulary = TokenTable.read(metadata, {"eos": 1, "unk": 2, "pad": 0})
    charsmap = metadata.integers(PREFIX + "precompiled_charsmap", default=None)
    space_prefix = metadata.boolean(PREFIX + "add_space_prefix", default=False)
    merges_spaces = metadata.boolean(PREFIX + "remove_extra_whitespaces", default=False)
    model = Unigram(
        vocabulary,
        read_scores(metadata, len(vocabulary)),
        b"" if charsmap is None else charsmap.astype(np.uint8).tobytes(),
        space_prefix=space_prefix,
        merges_spaces=merges_spaces,
    )
    return Tokenizer(vocabulary, model, metadata, add_bos=False, add_eos=True, strips=space_prefix)


def load_sentence_piece(metadata: Metadata) -> Tokenizer:
    vocabulary = TokenTable.read(metadata, {"bos": 1, "eos": 2, "unk": 0})
    scores = read_scores(metadata, len(vocabulary))
    space_prefix = metadata.boolean(PREFIX + "add_space_prefix", default=True)
    model = SentencePiece(vocabulary, scores)
    return Tokenizer(vocabulary, model, metadata, add_bos=True, space_prefix=space_prefix)


def read_scores(metadata: Metadata, count: int) -> NDArray[np.float32]:
    """The score of each token, f32 [count]."""
    key = PREFIX + "scores"
    if key not in metadata:
        raise TokenizerError(f"the scores ({key!r}) are missing", where=metadata.where)
    with np.errstate(over="ignore"):
        scores = metadata.numbers(key).astype(np.float32)
    if len(scores) != count:
        what = f"{key!r} has {len(scores)} entries for {count} tokens"
        raise TokenizerError(what, where=metadata.where)
    if not np.isfinite(scores).all():
        what = f"{key!r} is {scores[~np.isfinite(scores)][0]} for a token"
        raise TokenizerError(what, where=metadata.where)
    return scores


KINDS: Mapping[str, Callable[[Metadata], Tokenizer]] = {
    "gpt2": load_gpt2,
    "llama": load_sentence_piece,
    "gemma4": load_gemma4,
    "bert": load_word_piece,
    "t5": load_unigram,
}


def load(metadata: Metadata) -> Tokenizer:
    """The tokenizer that a file describes. Raises TokenizerError, naming file and key, where Puna cannot use it."""
    key = PREFIX + "model"
    if key not in metadata:
        raise TokenizerError(f"the file has no tokenizer ({key!r} is missing)", where=metadata.where)
    kind = metadata.string(key)
    if kind not in KINDS:
        raise TokenizerError(
            f"tokenizer kind {kind!r} ({key!r}) is not supported yet",
            where=metadata.where,
            fix=f"use a model with one of these: {', '.join(KINDS)}",
        )
    return KINDS[kind](metadata)
