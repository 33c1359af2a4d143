"""Tokens with a meaning, what is added to texts, and chat templates, as metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from puna.convert.config import Config
from puna.convert.folder import Folder
from puna.convert.typed import boolean, text, u32
from puna.errors import FormatError
from puna.gguf import Value, ValueType
from puna.tokenizer.tokens import END_TEXTS, ID_KEYS, PREFIX

__all__ = ["special_keys", "template_keys"]

MEANINGS = ("bos", "eos", "unk", "sep", "pad", "mask")
TEMPLATE = "tokenizer.chat_template"
NOT_A_NAME = re.compile(r"[^0-9A-Za-z]")


def special_keys(
    folder: Folder,
    config: Config,
    tokenizer: Mapping[str, Any] | None,
    ids: Mapping[str, int],
    size: int,
    notes: list[str],
) -> dict[str, Value]:
    """The ids of tokens with a meaning, and whether BOS and EOS are added.

    ids: of the tokens' texts. size: of the vocabulary. notes: of what cannot be expressed, to be added to.
    """
    settings = folder.json("tokenizer_config.json") or {}
    shared = folder.json("special_tokens_map.json") or {}
    found: dict[str, int] = {}
    for meaning in MEANINGS:
        token = ids.get(content(settings.get(f"{meaning}_token", shared.get(f"{meaning}_token"))) or "")
        token = id_of(config, meaning) if token is None else token
        if token is not None and token < size:
            found[meaning] = token
    before, after = around(tokenizer, notes)
    adds = {
        "bos": added(settings, "bos", before, ids, found),
        "eos": added(settings, "eos", after, ids, found),
    }
    keys = {PREFIX + ID_KEYS[meaning][0]: u32(token) for meaning, token in found.items()}
    for meaning, adding in adds.items():
        if adding is not None:
            keys[f"{PREFIX}add_{meaning}_token"] = boolean(adding)
    return {**keys, **more_ends(folder, ids, size, found)}


def content(entry: Any) -> str | None:
    """The text of a token, which may come with flags."""
    entry = entry.get("content") if isinstance(entry, dict) else entry
    return entry if isinstance(entry, str) else None


def id_of(config: Config, meaning: str) -> int | None:
    value = config.get(f"{meaning}_token_id")
    return value if type(value) is int and value >= 0 else None


def around(
    tokenizer: Mapping[str, Any] | None, notes: list[str]
) -> tuple[list[str] | None, list[str] | None]:
    """The special tokens before and after a text; None where tokenizer.json does not say."""
    if tokenizer is None:
        return None, None
    processor = tokenizer.get("post_processor")
    parts = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    before: list[str] = []
    after: list[str] = []
    for part in parts if isinstance(parts, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "TemplateProcessing":
            before, after = template(part)
        elif kind in {"RobertaProcessing", "BertProcessing"}:
            before, after = ([str((part.get(key) or [""])[0])] for key in ("cls", "sep"))
    for side, names in (("before", before), ("after", after)):
        if len(names) > 1:
            notes.append(
                f"the tokenizer puts {' '.join(names)} {side} a text, where a GGUF file has one token"
            )
    return before, after


def template(part: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The special tokens on each side of the sequence."""
    single = part.get("single")
    sides: tuple[list[str], list[str]] = ([], [])
    place = 0
    for item in single if isinstance(single, list) else []:
        if isinstance(item, dict) and "Sequence" in item:
            place = 1
        elif isinstance(item, dict) and isinstance(item.get("SpecialToken"), dict):
            sides[place].append(str(item["SpecialToken"].get("id")))
    return sides


def added(
    settings: Mapping[str, Any],
    meaning: str,
    names: list[str] | None,
    ids: Mapping[str, int],
    found: dict[str, int],
) -> bool | None:
    """Whether the token of a meaning is added to texts; None where no file says. May find which token it is."""
    said = settings.get(f"add_{meaning}_token")
    if names and len(names) == 1 and names[0] in ids:
        found.setdefault(meaning, ids[names[0]])
    if isinstance(said, bool):
        return said and meaning in found
    if names is None:
        return None
    return len(names) == 1 and ids.get(names[0]) == found.get(meaning, -1)


def more_ends(
    folder: Folder, ids: Mapping[str, int], size: int, found: Mapping[str, int]
) -> dict[str, Value]:
    """A further end of generation_config.json, where readers would not know it by its text."""
    ends = (folder.json("generation_config.json") or {}).get("eos_token_id")
    known = {ids[end] for end in END_TEXTS if end in ids} | set(found.values())
    left = [end for end in ends if type(end) is int and 0 <= end < size] if isinstance(ends, list) else []
    left = [end for end in left if end not in known]
    keys = (ID_KEYS["eot"][0], ID_KEYS["eom"][0])
    return {PREFIX + key: u32(end) for key, end in zip(keys, left, strict=False)}


def template_keys(folder: Folder) -> dict[str, Value]:
    """Chat templates by name: from their own files, else from tokenizer_config.json. Raises FormatError."""
    templates = from_files(folder) or from_settings(folder)
    keys = {f"{TEMPLATE}.{name}": text(source) for name, source in templates.items() if name != "default"}
    if keys:
        names = [key.removeprefix(f"{TEMPLATE}.") for key in keys]
        keys["tokenizer.chat_templates"] = Value(ValueType.STRING, names)
    if "default" in templates:
        keys[TEMPLATE] = text(templates["default"])
    return keys


def from_files(folder: Folder) -> dict[str, str]:
    found: dict[str, str] = {}
    default = folder.text("chat_template.jinja")
    if default is None:
        held = (folder.json("chat_template.json") or {}).get("chat_template")
        default = held if isinstance(held, str) else None
    if default is None:
        return found
    for path in sorted((folder.path / "additional_chat_templates").glob("*.jinja")):
        source = folder.text(f"additional_chat_templates/{path.name}")
        if source is not None:
            found[plain(path.stem)] = source
    return {**found, "default": default}


def from_settings(folder: Folder) -> dict[str, str]:
    held = (folder.json("tokenizer_config.json") or {}).get("chat_template")
    if held is None:
        return {}
    if isinstance(held, str):
        return {"default": held}
    found = {}
    for entry in held if isinstance(held, list) else [None]:
        name, source = (entry.get(key) if isinstance(entry, dict) else None for key in ("name", "template"))
        if not isinstance(name, str) or not isinstance(source, str):
            what = "'chat_template' is neither a text nor a list of named ones"
            raise FormatError(what, where=folder.where("tokenizer_config.json"))
        found[plain(name)] = source
    return found


def plain(name: str) -> str:
    """A name that can be part of a key."""
    return NOT_A_NAME.sub("_", name)
