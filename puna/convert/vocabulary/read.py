"""From a folder's tokenizer files to `tokenizer.*`: which files count, and what kind of tokenizer they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from puna.convert.config import Config
from puna.convert.folder import Folder
from puna.convert.vocabulary import proto
from puna.convert.vocabulary.byte_pair import is_byte_level, read_byte_level
from puna.convert.vocabulary.lines import LINES, from_lines
from puna.convert.vocabulary.pieces import from_json, from_proto
from puna.convert.vocabulary.special import special_keys, template_keys
from puna.convert.vocabulary.tokens import Table, added_tokens
from puna.errors import FormatError, TokenizerError
from puna.gguf import Value
from puna.tokenizer.tokens import PREFIX

__all__ = ["Vocabulary", "read"]

SAVE = "save it with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
JSON, PROTOS = "tokenizer.json", ("tokenizer.model", "spiece.model")
# Files of tokenizers that would have to be run to be understood, or that have another form.
STRANGERS = ("tekken.json", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class Vocabulary:
    """keys: `tokenizer.*`. about: the kind and the number of tokens, in words. notes: a line each."""

    keys: Mapping[str, Value]
    about: str
    notes: tuple[str, ...]


def read(
    folder: Folder, config: Config, *, size: int | None, preferred: tuple[str, ...], pre: str | None
) -> Vocabulary:
    """The vocabulary of a folder. Raises TokenizerError or FormatError.

    size: how many tokens the model has rows for; None takes the tokenizer's own number.
    preferred: names of pre-tokenizers to take first among equal ones. pre: the name that the user gives.
    """
    tokenizer = folder.json(JSON)
    try:
        table, keys = tables(folder, tokenizer, preferred, pre)
    except RecursionError:
        raise FormatError("its steps are nested too deeply", where=folder.where(JSON)) from None
    size = max(table.texts) + 1 if size is None else size
    try:
        token_keys = table.keys(size)
    except TokenizerError as error:
        raise TokenizerError(error.what, where=str(folder.path)) from None
    ids = {text: token for text, token in table.ids().items() if token < size}
    notes = list(table.notes)
    special = special_keys(folder, config, tokenizer, ids, size, notes)
    kind, name = (keys[PREFIX + key].value for key in ("model", "pre"))
    about = f"{kind}, {size} tokens" if name == "default" else f"{kind}, pre-tokenizer {name}, {size} tokens"
    # What a kind itself says goes before what the folder's other files do.
    found = {**keys, **token_keys, **special, **template_keys(folder), **keys}
    return Vocabulary(found, about, tuple(notes))


def tables(
    folder: Folder, tokenizer: dict[str, Any] | None, preferred: tuple[str, ...], pre: str | None
) -> tuple[Table, dict[str, Value]]:
    """The tokens, and the keys that belong to their kind."""
    added = added_tokens(folder, tokenizer)
    if tokenizer is not None and is_byte_level(tokenizer):
        return read_byte_level(folder, tokenizer, added, preferred, pre)
    model = None if tokenizer is None else tokenizer.get("model")
    if name := next((name for name in PROTOS if name in folder), None):
        try:
            held = proto.read(folder.read(name), folder.where(name))
        except FormatError:
            if model is None:
                raise
        else:
            return from_proto(held, added, folder.where(name))
    if tokenizer is None:
        raise missing(folder)
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if kind not in {"BPE", "Unigram"}:
        what = f"a tokenizer of type {kind!r} cannot be converted, only BPE and Unigram"
        raise TokenizerError(what, where=folder.where(JSON))
    if kind == "BPE" and LINES in preferred:
        return from_lines(folder, tokenizer, added)
    return from_json(folder, tokenizer, added)


def missing(folder: Folder) -> FormatError:
    other = next((name for name in STRANGERS if name in folder), None)
    what = f"neither {JSON} nor {PROTOS[0]} is there" + (f", only {other}" if other else "")
    return FormatError(what, where=str(folder.path), fix=SAVE if other else "finish the download")
