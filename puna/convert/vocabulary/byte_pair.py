"""A byte-level BPE tokenizer.json as metadata: `tokenizer.ggml.model` = gpt2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from puna.convert.folder import Folder
from puna.convert.vocabulary.pre import checked_name, differs, recognised
from puna.convert.vocabulary.tokens import Added, Table, kind_keys, reversed_ids
from puna.errors import FormatError, TokenizerError
from puna.gguf import Value, ValueType
from puna.tokenizer.tokens import PREFIX, Kind

__all__ = ["is_byte_level", "merge_pairs", "read_byte_level"]

COMPOSING = (
    "text is brought into Unicode's form NFC first, which a GGUF file cannot say: other forms get other ids"
)


def is_byte_level(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json writes bytes in GPT-2's alphabet."""
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        return False
    return any("ByteLevel" in types(tokenizer.get(step)) for step in ("pre_tokenizer", "decoder"))


def types(step: Any) -> list[str]:
    """The types of a step and of the steps in it."""
    if not isinstance(step, dict):
        return []
    inner: list[Any] = next((step[key] for key in STEPS if isinstance(step.get(key), list)), [])
    return [str(step.get("type")), *(name for part in inner for name in types(part))]


STEPS = ("normalizers", "pretokenizers", "decoders", "processors")


def read_byte_level(
    folder: Folder,
    tokenizer: Mapping[str, Any],
    added: Mapping[int, Added],
    preferred: tuple[str, ...],
    pre: str | None,
) -> tuple[Table, dict[str, Value]]:
    """Tokens and further keys. Raises TokenizerError for what GGUF cannot express.

    pre: the name that the user gives.
    """
    where, model = folder.where("tokenizer.json"), tokenizer["model"]
    texts = reversed_ids(model.get("vocab"), where)
    pairs = merge_pairs(model, where)
    table = Table(texts, dict.fromkeys(texts, Kind.NORMAL))
    table.notes += normalised(tokenizer, where)
    refuse_options(model, where)
    ignore_merges = model.get("ignore_merges") is True
    if pre is None:
        pre = recognised(
            tokenizer,
            where,
            preferred=preferred,
            ignore_merges=ignore_merges,
            same_without=lambda: all_reached(texts, pairs),
        )
    elif text := differs(tokenizer, where, checked_name(pre)):
        table.notes.append(f"pre-tokenizer {pre!r} cuts {text!r} otherwise than this tokenizer")
    table.add(added)
    merges = Value(ValueType.STRING, [f"{left} {right}" for left, right in pairs])
    return table, {**kind_keys("gpt2", pre), PREFIX + "merges": merges}


def merge_pairs(model: Mapping[str, Any], where: str) -> list[tuple[str, str]]:
    """The merges, the first merged first. Raises FormatError where one is no pair."""
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise FormatError("'model.merges' is no list", where=where)
    pairs = []
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise FormatError(f"the merge {str(merge)[:60]!r} is no pair", where=where)
        pairs.append((pair[0], pair[1]))
    return pairs


def normalised(tokenizer: Mapping[str, Any], where: str) -> list[str]:
    """A note on the normaliser. Raises TokenizerError for one that changes common text."""
    found = set(types(tokenizer.get("normalizer"))) - {"Sequence"}
    if not found <= {"NFC"}:
        names = ", ".join(sorted(found))
        what = f"the normalizer ({names}) cannot be expressed in a GGUF file"
        raise TokenizerError(what, where=where)
    return [COMPOSING] if found else []


def refuse_options(model: Mapping[str, Any], where: str) -> None:
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            what = f"'model.{key}' is {model[key]!r}, which a GGUF file cannot express"
            raise TokenizerError(what, where=where)


def all_reached(texts: Mapping[int, str], pairs: list[tuple[str, str]]) -> bool:
    """Whether merging alone makes each token from its text."""
    from tokenizers.models import BPE

    try:
        model = BPE({text: token for token, text in texts.items()}, pairs)
    except Exception:  # a merge outside the vocabulary; the library has no class of its own for it
        return False
    return all([part.id for part in model.tokenize(text)] == [token] for token, text in texts.items())
