"""What a file says of itself: `general.*`, from the folder's name, its model card and its generation settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from puna.convert.folder import Folder
from puna.convert.output import OutType
from puna.convert.tensors import Planned
from puna.convert.typed import f32, text, u32
from puna.gguf import Value, ValueType

__all__ = ["general"]

QUANTIZATION_VERSION = 2
# generation_config.json -> general.sampling.*, as llama.cpp has it.
SAMPLING: Mapping[str, str] = {"top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "temperature": "temp"}
UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
MOST_CARD = 1 << 16  # bytes of a model card that are looked at


def general(
    folder: Folder, architecture: str, name: str | None, tensors: Iterable[Planned], out: OutType | None
) -> dict[str, Value]:
    """The keys. name: of the model, by default the folder's. out: None where only the vocabulary is written."""
    keys = {
        "general.architecture": text(architecture),
        "general.type": text("model"),
        "general.name": text(name or title(folder.name)),
    }
    tensors = list(tensors)
    if tensors:
        keys["general.size_label"] = text(size_label(tensors))
    keys |= card_keys(folder) | sampling_keys(folder)
    if out is not None:
        keys["general.file_type"] = u32(out.file_type)
    keys["general.quantization_version"] = u32(QUANTIZATION_VERSION)
    return keys


def title(name: str) -> str:
    """A repository's name as a title: words that are all lower case get a capital."""
    words = name.replace("-", " ").split()
    return " ".join(word.capitalize() if word.islower() and word.isalpha() else word for word in words)


def size_label(tensors: list[Planned]) -> str:
    """How many parameters: 1.5B, or 8x7.2B with experts."""
    total = {tensor.name: prod(tensor.shape) for tensor in tensors}
    stacks = {tensor.name: tensor.shape[0] for tensor in tensors if "_exps." in tensor.name}
    if not stacks:
        return rounded(sum(total.values()))
    experts = max(stacks.values())
    one = sum(count // stacks.get(name, 1) for name, count in total.items())
    return f"{experts}x{rounded(one)}"


def rounded(count: int) -> str:
    """Two digits at least, in thousands and more."""
    size, unit = next(((size, unit) for size, unit in UNITS if count > size), UNITS[-1])
    scaled = count / size
    return f"{scaled:.{max(0, 2 - len(str(round(scaled)).lstrip('0')))}f}{unit}"


def sampling_keys(folder: Folder) -> dict[str, Value]:
    held = folder.json("generation_config.json") or {}
    found = {}
    for source, key in SAMPLING.items():
        value = held.get(source)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        whole = key == "top_k"
        if 0 <= value < 1 << 31:
            found[f"general.sampling.{key}"] = (
                Value(ValueType.INT32, int(value)) if whole else f32(float(value))
            )
    return found


def card_keys(folder: Folder) -> dict[str, Value]:
    """The license, tags and languages of README.md's YAML."""
    card = model_card(folder)
    found: dict[str, Value] = {}
    license_ = card.get("license")
    if names := texts(license_):
        found["general.license"] = text(",".join(names))
    for key, label in (("license_name", "license.name"), ("license_link", "license.link")):
        if isinstance(card.get(key), str):
            found[f"general.{label}"] = text(card[key])
    tags = [*texts(card.get("tags")), *texts(card.get("pipeline_tag"))]
    for key, values in (("tags", tags), ("languages", texts(card.get("language")))):
        if values:
            found[f"general.{key}"] = Value(ValueType.STRING, values)
    return found


def texts(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str) and item]


def model_card(folder: Folder) -> Mapping[str, Any]:
    """The YAML at the start of README.md; nothing where it is damaged, since it only describes."""
    if "README.md" not in folder:
        return {}
    page = folder.read("README.md")[:MOST_CARD].decode("utf-8", "replace")
    head, found, _ = page.removeprefix("---\n").partition("\n---")
    if not page.startswith("---\n") or not found:
        return {}
    import yaml  # type: ignore[import-untyped]

    try:
        card = yaml.safe_load(head)
    except (yaml.YAMLError, RecursionError):
        return {}
    return card if isinstance(card, dict) else {}
