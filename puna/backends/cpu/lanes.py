"""The lane algebra of quantisation types, over LLVM vectors: the same lines that NumPy runs become machine code."""

from __future__ import annotations

from puna.backends.cpu.lang import Ptr, Value
from puna.backends.cpu.lookups import constant, gather, lookup
from puna.backends.cpu.verbs import as_halves, load_halves
from puna.quants.grids import Grid
from puna.quants.lanes import LANES, Block, Kind, Lanes, Verb

__all__ = ["LLVMBlock", "LLVMLanes", "value_of"]

OPERATORS = {
    "and": Value.__and__,
    "or": Value.__or__,
    "xor": Value.__xor__,
    "shl": Value.__lshift__,
    "shr": Value.__rshift__,
    "add": Value.__add__,
    "sub": Value.__sub__,
    "mul": Value.__mul__,
}


class LLVMLanes(Lanes):
    """Lanes of one block: a vector in a register."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def apply(self, verb: Verb, other: Lanes | float) -> Lanes:
        operand = other if isinstance(other, int | float) else value_of(other)
        return LLVMLanes(OPERATORS[verb](self.value, operand))

    def __neg__(self) -> Lanes:
        return LLVMLanes(-self.value)

    def __getitem__(self, lanes: slice) -> Lanes:
        return LLVMLanes(self.value[lanes])

    def bits(self) -> Lanes:
        count, width = self.value.lanes, {"u8": 8, "u16": 16, "u32": 32}[self.value.kind]
        repeated = (
            self.value if count == 1 else self.value.shuffle([i // width for i in range(count * width)])
        )
        shifts = self.value.k.lanes(self.value.kind, list(range(width)) * count)
        return LLVMLanes(((repeated.splat(count * width) >> shifts) & 1).to("u8"))

    def lookup(self, table: tuple[int, ...]) -> Lanes:
        return LLVMLanes(lookup(self.value, table))

    def gather(self, grid: Grid) -> Lanes:
        k, entries = self.value.k, self.value.to("i64")
        places = [entries] if entries.lanes == 1 else [entries[i] for i in range(entries.lanes)]
        return LLVMLanes(gather(constant(k, grid.name, grid.data), places, grid.width))

    def u8(self) -> Lanes:
        return LLVMLanes(self.value.to("u8"))

    def u16(self) -> Lanes:
        return LLVMLanes(self.value.to("u16"))

    def u32(self) -> Lanes:
        return LLVMLanes(self.value.to("u32"))

    def f32(self) -> Lanes:
        return LLVMLanes(self.value.to("f32"))

    def as_i8(self) -> Lanes:
        return LLVMLanes(self.value.as_("i8"))

    def as_f16(self) -> Lanes:
        return LLVMLanes(as_halves(self.value))

    def as_f32(self) -> Lanes:
        return LLVMLanes(self.value.as_("f32"))


class LLVMBlock(Block):
    """One block in memory, at an address."""

    __slots__ = ("at",)

    def __init__(self, at: Ptr) -> None:
        self.at = at

    def read(self, kind: Kind, at: int, n: int) -> Lanes:
        if kind == "f16":
            return LLVMLanes(load_halves(self.at, n, at))
        words = self.at.load(kind, n, at)
        return LLVMLanes(words if kind in LANES else words.to("f32"))

    def cat(self, *parts: Lanes) -> Lanes:
        joined = value_of(parts[0])
        for part in parts[1:]:
            joined = joined_with(joined, value_of(part))
        return LLVMLanes(joined)


def joined_with(a: Value, b: Value) -> Value:
    """The lanes of a, then those of b, of which either may be a single one."""
    first, second = (value.splat(2) if value.lanes == 1 else value for value in (a, b))
    return first.cat(second)[first.lanes - a.lanes : first.lanes + b.lanes]


def value_of(lanes: Lanes) -> Value:
    """The value behind LLVM lanes. Raises TypeError for another implementation's."""
    if not isinstance(lanes, LLVMLanes):
        raise TypeError(f"{type(lanes).__name__} where LLVMLanes are needed")
    return lanes.value
