"""SentencePiece vocabularies as metadata: `tokenizer.ggml.model` = llama for merged pairs, t5 for unigram models.

They come from tokenizer.model, or from a tokenizer.json that was made of one.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from puna.convert.folder import Folder
from puna.convert.typed import boolean
from puna.convert.vocabulary.byte_pair import merge_pairs
from puna.convert.vocabulary.proto import ModelProto
from puna.convert.vocabulary.tokens import SPACE, Added, Table, kind_keys, reversed_ids
from puna.errors import FormatError, TokenizerError
from puna.gguf import Value, ValueType
from puna.tokenizer.tokens import PREFIX, Kind

__all__ = ["from_json", "from_proto", "kinds_of", "puts_space_first", "refuse_unlike"]

BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
PRE = "default"
MOST_SCORES = 1 << 24  # merges whose ranks are distinct as float32
ONLY_WHERE_NONE = (
    "a space goes before a text that begins with one, too, and after special tokens: GGUF knows no other way"
)
AFTER_ADDED = (
    "a space goes before the text after an added token, too, which the original tokenizer leaves out"
)
NO_BYTES = (
    "readers of unigram vocabularies have no byte fallback: characters without a piece become unknown tokens"
)
FIX = "add the tokenizer.model that it was made of"


def from_proto(proto: ModelProto, added: Mapping[int, Added], where: str) -> tuple[Table, dict[str, Value]]:
    """Tokens and further keys. Raises TokenizerError for a normaliser that GGUF cannot express."""
    table = Table({}, {}, {}, spaces=True)
    assert table.scores is not None
    for token, piece in enumerate(proto.pieces):
        kind = Kind(piece.kind)
        user = kind is Kind.USER_DEFINED
        table.texts[token] = piece.text.replace(SPACE, " ") if user else piece.text
        table.kinds[token], table.scores[token] = kind, piece.score
    table.add(added)
    if not proto.escapes_spaces or proto.spaces_behind:
        raise TokenizerError("spaces are not at the start of words, which GGUF cannot express", where=where)
    if proto.is_unigram:
        table.notes += [NO_BYTES] * proto.has_bytes
        return table, unigram_keys(proto.space_prefix, proto.one_space, proto.charsmap)
    if proto.charsmap or proto.one_space:
        what = "a normalizer" if proto.charsmap else "runs of spaces becoming one"
        raise TokenizerError(
            f"the SentencePiece model asks for {what}, which GGUF cannot express", where=where
        )
    if proto.space_prefix and Kind.USER_DEFINED in table.kinds.values():
        table.notes.append(AFTER_ADDED)
    return table, pair_keys(proto.space_prefix)


def pair_keys(space_prefix: bool) -> dict[str, Value]:
    return {**kind_keys("llama", PRE), PREFIX + "add_space_prefix": boolean(space_prefix)}


def unigram_keys(space_prefix: bool, one_space: bool, charsmap: bytes) -> dict[str, Value]:
    keys = {
        **kind_keys("t5", PRE),
        PREFIX + "add_space_prefix": boolean(space_prefix),
        PREFIX + "remove_extra_whitespaces": boolean(one_space),
    }
    if charsmap:
        table = np.frombuffer(charsmap, np.uint8)
        keys[PREFIX + "precompiled_charsmap"] = Value(ValueType.UINT8, table)
    return keys


def from_json(
    folder: Folder, tokenizer: Mapping[str, Any], added: Mapping[int, Added]
) -> tuple[Table, dict[str, Value]]:
    """The same from a tokenizer.json. Raises TokenizerError where it is no SentencePiece model in other words."""
    where, model = folder.where("tokenizer.json"), tokenizer["model"]
    read = {"BPE": pairs_from_json, "Unigram": unigram_from_json}[model.get("type", "BPE")]
    table, keys = read(tokenizer, model, added, where)
    table.add(added)
    if any(step.get("prepend_scheme") == "first" for step in steps(tokenizer.get("pre_tokenizer"))):
        table.notes.append(ONLY_WHERE_NONE)
    return table, keys


def pairs_from_json(
    tokenizer: Mapping[str, Any], model: Mapping[str, Any], added: Mapping[int, Added], where: str
) -> tuple[Table, dict[str, Value]]:
    refuse_unlike(model, where)
    texts = reversed_ids(model.get("vocab"), where)
    table = Table(texts, kinds_of(texts, model.get("unk_token")), {}, spaces=True)
    # Added tokens are cut out of a text before anything is merged.
    merged = (token for token in texts.keys() - added.keys() if table.kinds[token] is Kind.NORMAL)
    normal = {texts[token] for token in merged}
    ranks = merge_ranks(merge_pairs(model, where), normal, where)
    # In SentencePiece a piece has one score, whichever two pieces make it; the best is the lowest rank.
    table.scores = {token: -float(ranks.get(text, MOST_SCORES)) for token, text in texts.items()}
    return table, pair_keys(puts_space_first(tokenizer, normal, where))


def refuse_unlike(model: Mapping[str, Any], where: str) -> None:
    """Raise TokenizerError unless bytes stand for what has no token, and merges alone make tokens."""
    if model.get("byte_fallback") is not True or model.get("ignore_merges") is True:
        what = "the BPE model has no byte fallback, or takes whole words: GGUF cannot express it"
        raise TokenizerError(what, where=where)


def kinds_of(texts: Mapping[int, str], unknown: Any) -> dict[int, Kind]:
    kinds = {token: Kind.BYTE if BYTE.fullmatch(text) else Kind.NORMAL for token, text in texts.items()}
    return kinds | {token: Kind.UNKNOWN for token, text in texts.items() if text == unknown}


def merge_ranks(pairs: list[tuple[str, str]], normal: set[str], where: str) -> dict[str, int]:
    """The rank of each piece. Raises TokenizerError unless scores of pieces merge as the pairs do.

    That is so where the pairs of a piece follow each other, and every two pieces that make one are a pair.
    """
    ranks: dict[str, int] = {}
    held = set(pairs)
    last = ""
    for rank, (left, right) in enumerate(pairs):
        made = left + right
        if made not in normal:
            continue
        if made in ranks and made != last:
            what = f"the merges that make {made!r} do not follow each other"
            raise TokenizerError(f"{what}, as those of a SentencePiece model do", where=where, fix=FIX)
        ranks.setdefault(made, rank)
        last = made
    for piece in normal:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in normal and right in normal and (left, right) not in held:
                what = f"{left!r} and {right!r} make the token {piece!r}, but no merge says so"
                raise TokenizerError(
                    f"{what}: this is no SentencePiece model in other words", where=where, fix=FIX
                )
    return ranks


def puts_space_first(tokenizer: Mapping[str, Any], normal: set[str], where: str) -> bool:
    """Whether a space goes before a text. Raises TokenizerError for steps that SentencePiece does not have."""
    first = False
    for step in [*steps(tokenizer.get("normalizer")), *steps(tokenizer.get("pre_tokenizer"))]:
        kind = step.get("type")
        if kind == "Metaspace":
            first = first or step.get("prepend_scheme", "always") != "never"
            splits = step.get("split", True)
            if splits and any(SPACE in piece[1:] for piece in normal):
                raise TokenizerError("words are cut at spaces that tokens hold", where=where, fix=FIX)
        elif kind == "Prepend" and step.get("prepend") == SPACE:
            first = True
        elif not is_harmless(step):
            what = f"the step {kind!r} of the tokenizer is none of SentencePiece's"
            raise TokenizerError(what, where=where, fix=FIX)
    return first


def is_harmless(step: Mapping[str, Any]) -> bool:
    """Whether a step writes spaces as U+2581, or cuts at the spaces that are none any more."""
    pattern = step.get("pattern")
    at_space = isinstance(pattern, dict) and pattern.get("String") == " "
    return at_space and (step.get("type") == "Split" or step.get("content") == SPACE)


def steps(step: Any) -> list[Mapping[str, Any]]:
    """A step, or the steps of a sequence."""
    if not isinstance(step, dict):
        return []
    for key in ("normalizers", "pretokenizers"):
        if isinstance(step.get(key), list):
            return [part for inner in step[key] for part in steps(inner)]
    return [step]


def unigram_from_json(
    tokenizer: Mapping[str, Any], model: Mapping[str, Any], added: Mapping[int, Added], where: str
) -> tuple[Table, dict[str, Value]]:
    pieces = model.get("vocab")
    if not isinstance(pieces, list) or not all(map(is_scored, pieces)):
        raise FormatError("'model.vocab' is no list of pieces with scores", where=where)
    texts = {token: text for token, (text, _) in enumerate(pieces)}
    unknown = model.get("unk_id")
    kinds = kinds_of(texts, texts.get(unknown) if isinstance(unknown, int) else None)
    table = Table(texts, kinds, {token: float(score) for token, (_, score) in enumerate(pieces)}, spaces=True)
    charsmap, one_space, rest = b"", False, []
    for step in [*steps(tokenizer.get("normalizer")), *steps(tokenizer.get("pre_tokenizer"))]:
        pattern = step.get("pattern")
        if step.get("type") == "Precompiled":
            charsmap = decoded(step.get("precompiled_charsmap"), where)
        elif step.get("type") == "WhitespaceSplit" or (
            isinstance(pattern, dict) and pattern.get("Regex") == " {2,}"
        ):
            one_space = True
        else:
            rest.append(step)
    if one_space:  # which leaves none at the ends either
        rest = [step for step in rest if step.get("type") != "Strip"]
    table.notes += [NO_BYTES] * (model.get("byte_fallback") is True)
    space_first = puts_space_first({"normalizer": {"normalizers": rest}}, set(), where)
    return table, unigram_keys(space_first, one_space, charsmap)


def is_scored(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 2
        and isinstance(entry[0], str)
        and isinstance(entry[1], int | float)
    )


def decoded(charsmap: Any, where: str) -> bytes:
    try:
        return base64.b64decode(charsmap or "", validate=True)
    except (TypeError, binascii.Error):
        raise FormatError("'precompiled_charsmap' is not base64", where=where) from None
