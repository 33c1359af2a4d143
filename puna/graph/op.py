"""What a row of the operations table is, and the error of a graph that breaks its rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from puna.graph.node import Node, Type

__all__ = ["Attrs", "Op", "Rule", "SpecError", "need"]

Attrs = Mapping[str, object]
Rule = Callable[[Sequence[Type], Attrs], Type]


class SpecError(Exception):
    """A graph that breaks its own rules: a fault in a model file or a pass, not in what a user gave."""


@dataclass(frozen=True)
class Op:
    """One row of the table.

    inputs: names of the operands; a name ending in "?" may be left out.
    attrs: names of the constants, likewise.
    rule: operand types and constants -> type of the result; raises SpecError.
    meaning: one line.
    definition: for a fused operation, the same in plain ones.
    """

    inputs: tuple[str, ...]
    attrs: tuple[str, ...]
    rule: Rule
    meaning: str
    definition: Callable[[Node], Node] | None = None

    def infer(self, types: Sequence[Type], attrs: Attrs) -> Type:
        """Type of the result. Raises SpecError when operands or constants do not fit."""
        least = sum(not name.endswith("?") for name in self.inputs)
        need(least <= len(types) <= len(self.inputs), f"takes {self.inputs}, got {len(types)} operands")
        needed = {name for name in self.attrs if not name.endswith("?")}
        named = {name.rstrip("?") for name in self.attrs}
        need(needed <= set(attrs) <= named, f"takes constants {self.attrs}, got {tuple(attrs)}")
        return self.rule(types, attrs)


def need(condition: bool, message: str) -> None:
    if not condition:
        raise SpecError(message)
