"""Gemma 4's tokenizer.json as metadata: `tokenizer.ggml.model` = gemma4, merged pairs of whole lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from puna.convert.folder import Folder
from puna.convert.typed import boolean
from puna.convert.vocabulary.byte_pair import merge_pairs
from puna.convert.vocabulary.pieces import kinds_of, puts_space_first, refuse_unlike
from puna.convert.vocabulary.tokens import Added, Table, kind_keys, reversed_ids
from puna.errors import TokenizerError
from puna.gguf import Value, ValueType
from puna.tokenizer.tokens import PREFIX, Kind

__all__ = ["LINES", "from_lines"]

LINES = "gemma4"
# Tokens that an answer is read from: they are shown, though the files have them among the special ones.
SHOWN = frozenset(
    {
        "<|channel>",
        "<channel|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|tool_response>",
        "<tool_response|>",
        '<|"|>',
    }
)


def from_lines(
    folder: Folder, tokenizer: Mapping[str, Any], added: Mapping[int, Added]
) -> tuple[Table, dict[str, Value]]:
    """Tokens and further keys. Raises TokenizerError for steps that readers of this kind do not take."""
    where, model = folder.where("tokenizer.json"), tokenizer["model"]
    refuse_unlike(model, where)
    texts = reversed_ids(model.get("vocab"), where)
    table = Table(texts, kinds_of(texts, model.get("unk_token")), spaces=True)
    merged = {
        text for token, text in texts.items() if token not in added and table.kinds[token] is Kind.NORMAL
    }
    if puts_space_first(tokenizer, merged, where):
        raise TokenizerError("a space goes before a text, which GGUF has no way to say here", where=where)
    if any("\n" in text and text.strip("\n") for text in merged):
        raise TokenizerError("tokens go on beyond the end of a line, where readers cut a text", where=where)
    table.add(added)
    table.kinds |= {token: Kind.USER_DEFINED for token, text in table.texts.items() if text in SHOWN}
    merges = Value(ValueType.STRING, [f"{left} {right}" for left, right in merge_pairs(model, where)])
    said = {
        PREFIX + key: boolean(value) for key, value in (("add_space_prefix", False), ("add_bos_token", True))
    }
    return table, {**kind_keys(LINES, LINES), PREFIX + "merges": merges, **said}
