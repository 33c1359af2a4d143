"""From the tensors of a checkpoint to those of a GGUF file: names, and how values move."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from puna.convert.config import Config
from puna.convert.folder import Checkpoint
from puna.errors import ModelError

__all__ = ["Change", "Part", "Planned", "Rule", "Rules", "moved", "plan", "prefixed"]

Change = Callable[[NDArray[Any], Config], NDArray[Any]]
Rules = Mapping[str, "str | Rule | tuple[Rule, ...]"]

Stack = Literal["altups", "experts", "heads", "heads_kv"]
WEIGHT, BIAS = ".weight", ".bias"
NUMBER = re.compile(r"(?<=\.)\d{1,6}(?=\.)")
PLACES = ("{l}", "{e}")
FLOATS = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True)
class Rule:
    """Where a weight goes.

    target: its name in GGUF without `.weight`.
    end: what a weight's name ends in.
    change: moves the values, none of them altered; its rows stay the slowest dimension.
    plus: what is added to each value of the weight.
    bias: whether the module has a bias, or the key of config.json that says so.
    optional: whether the model can do without.
    rows: the key of config.json that says how many rows the weight has; those that are missing are zeros.
    stack: where the source has {e}, what it numbers: an attribute of Config that says how many there are.
    """

    target: str
    change: Change | None = None
    plus: float = 0.0
    bias: bool | str = False
    optional: bool = False
    stack: Stack = "experts"
    end: str = WEIGHT
    rows: str = ""

    def has_bias(self, config: Config) -> bool:
        return config.flag(self.bias) if isinstance(self.bias, str) else self.bias


@dataclass(frozen=True)
class Part:
    """A tensor of the checkpoint, and what becomes of it. rows: the least that it has in the end."""

    source: str
    change: Change | None = None
    plus: float = 0.0
    rows: int = 0


@dataclass
class Planned:
    """A tensor to write: the parts one behind the other. shape: slowest dimension first."""

    name: str
    shape: tuple[int, ...]
    parts: list[Part]


@dataclass
class Draft:
    """A tensor whose parts are being found, by number of the expert, 0 where there are none; `source` names one."""

    source: str
    stack: Stack | None
    parts: dict[int, Part] = field(default_factory=dict)


def plan(
    checkpoint: Checkpoint, names: Mapping[str, str], rules: Rules, config: Config
) -> tuple[Planned, ...]:
    """The tensors to write, in order of their names.

    names: tensors of the checkpoint and what the rules call them.
    Raises ModelError where a tensor has no rule, a rule has no tensor, or experts are missing.
    """
    drafts: dict[str, Draft] = {}
    for source, name in names.items():
        for target, expert, rule in matches(checkpoint, source, name, rules, config):
            pattern = pattern_of(name)[0]
            draft = drafts.setdefault(target, Draft(pattern, rule.stack if "{e}" in pattern else None))
            if expert in draft.parts:
                what = f"tensors {draft.parts[expert].source!r} and {source!r} both become {target!r}"
                raise ModelError(what, where=checkpoint.where(source))
            count = config.count(rule.rows) if rule.rows else 0
            plus = 0.0 if target.endswith(BIAS) else rule.plus
            draft.parts[expert] = Part(source, rule.change, plus, count)
    refuse_missing(checkpoint, drafts, rules, config)
    names_in_order = sorted(drafts, key=order)
    return tuple(planned(checkpoint, name, drafts[name], config) for name in names_in_order)


def pattern_of(name: str) -> tuple[str, list[int]]:
    """A name with its numbers as {l} and {e}, and the numbers."""
    numbers = [int(number) for number in NUMBER.findall(name)]
    places = iter(PLACES)
    return NUMBER.sub(lambda match: next(places, match[0]), name), numbers


def matches(
    checkpoint: Checkpoint, source: str, name: str, rules: Rules, config: Config
) -> Iterator[tuple[str, int, Rule]]:
    """Name in GGUF, number of the expert and rule for each tensor that this one goes into."""
    pattern, numbers = pattern_of(name)
    suffix = next((end for end in (WEIGHT, BIAS) if pattern.endswith(end)), "")
    found = rules.get(pattern.removesuffix(suffix))
    if found is None:
        raise unknown(checkpoint, source)
    layer, expert = (*numbers, 0, 0)[:2]
    if numbers and layer >= config.layers:
        what = f"tensor {source!r} is of layer {layer}, and 'num_hidden_layers' is {config.layers}"
        raise ModelError(what, where=checkpoint.where(source))
    for rule in as_rules(found):
        if suffix == BIAS and not rule.has_bias(config):
            raise unknown(checkpoint, source)
        yield rule.target.format(l=layer, e=expert) + (BIAS if suffix == BIAS else rule.end), expert, rule


def unknown(checkpoint: Checkpoint, source: str) -> ModelError:
    fix = "check that 'architectures' in config.json is right"
    return ModelError(
        f"tensor {source!r} has no place in this architecture", where=checkpoint.where(source), fix=fix
    )


def as_rules(found: str | Rule | tuple[Rule, ...]) -> tuple[Rule, ...]:
    if isinstance(found, str):
        return (Rule(found),)
    return found if isinstance(found, tuple) else (found,)


def refuse_missing(checkpoint: Checkpoint, drafts: Mapping[str, Draft], rules: Rules, config: Config) -> None:
    """Raise ModelError unless there is a tensor for every rule, layer and expert."""
    for source, found in rules.items():
        for rule in as_rules(found):
            if rule.optional:
                continue
            ends = (rule.end, BIAS) if rule.has_bias(config) else (rule.end,)
            for layer in range(config.layers if "{l}" in rule.target else 1):
                for end in ends:
                    refuse_gap(checkpoint, drafts, rule.target.format(l=layer) + end, source, layer, config)


def refuse_gap(
    checkpoint: Checkpoint, drafts: Mapping[str, Draft], target: str, source: str, layer: int, config: Config
) -> None:
    draft, end = drafts.get(target), target[target.rindex(".") :]
    count: int = 1 if draft is None or draft.stack is None else getattr(config, draft.stack)
    missing = next((expert for expert in range(count) if draft is None or expert not in draft.parts), None)
    if missing is not None:
        name = (source + end if draft is None else draft.source).format(l=layer, e=missing)
        raise ModelError(
            f"tensor {name!r}, which becomes {target!r}, is missing",
            where=parent(checkpoint),
            fix="finish the download, or check that 'architectures' in config.json is right",
        )
    if draft is not None and len(draft.parts) != count:
        what = f"{len(draft.parts)} {draft.stack} for {target!r}, and config.json says {count}"
        raise ModelError(what, where=parent(checkpoint))


def parent(checkpoint: Checkpoint) -> str:
    first = next(iter(checkpoint), None)
    return "the folder" if first is None else str(checkpoint.parts[first].path.parent)


def planned(checkpoint: Checkpoint, name: str, draft: Draft, config: Config) -> Planned:
    """The tensor with its shape. Raises ModelError for values that are no floats, and shapes that do not fit."""
    parts = [part for _, part in sorted(draft.parts.items())]
    shapes = {shape_of(checkpoint, part, config) for part in parts}
    if len(shapes) > 1:
        what = f"the parts of {name!r} have the shapes {' and '.join(map(str, sorted(shapes)))}"
        raise ModelError(what, where=parent(checkpoint))
    (shape,) = shapes
    return Planned(name, (len(parts), *shape) if draft.stack else shape, parts)


def shape_of(checkpoint: Checkpoint, part: Part, config: Config) -> tuple[int, ...]:
    """The shape after the change."""
    stored = checkpoint[part.source]
    if stored.dtype not in FLOATS:
        what = f"tensor {part.source!r} is of type {stored.dtype}, and its values are to be floats"
        fix = "give the model in float32, float16 or bfloat16"
        raise ModelError(what, where=checkpoint.where(part.source), fix=fix)
    if part.change is None:
        return (max(part.rows, stored.shape[0]), *stored.shape[1:]) if part.rows else stored.shape
    like = np.broadcast_to(np.uint8(0), stored.shape)  # takes no memory, however large
    return moved(part, like, config, checkpoint).shape


def moved(part: Part, values: NDArray[Any], config: Config, checkpoint: Checkpoint) -> NDArray[Any]:
    """The values where the file has them. Raises ModelError where their shape does not allow it."""
    if part.change is None:
        return values
    try:
        return part.change(values, config)
    except ValueError:
        what = (
            f"tensor {part.source!r} has the shape {list(values.shape)}, which config.json does not explain"
        )
        raise ModelError(what, where=checkpoint.where(part.source)) from None


def prefixed(rules: Rules, source: str, target: str) -> dict[str, str | Rule | tuple[Rule, ...]]:
    """The rules with something before each source and target, such as that of a layer."""

    def renamed(rule: Rule) -> Rule:
        return replace(rule, target=target + rule.target)

    return {source + key: tuple(map(renamed, as_rules(found))) for key, found in rules.items()}


def order(name: str) -> list[tuple[bool, int, str]]:
    """Sorts names with their numbers by size."""
    parts = name.split(".")
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
