"""A block of a panel, opened for reading: the codes of 16 rows, 32 values at a time, and the scales of its groups.

What lies in planes and is wanted a number at a time is put into bytes when a block is opened, on the thread's stack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from puna.backends.cpu.kernels.entries import grid_of
from puna.backends.cpu.kernels.planes import room, unpack
from puna.backends.cpu.lang import Ptr, Value
from puna.backends.cpu.lookups import lookup
from puna.backends.cpu.panels import ROWS, STEPS, TRITS, VECTOR, Panel
from puna.backends.cpu.verbs import load_floats

__all__ = ["Codes", "Scales", "codes_of"]


class Codes(ABC):
    """The codes of a block in one of their forms."""

    @abstractmethod
    def __init__(self, panel: Panel, at: Ptr) -> None: ...

    @abstractmethod
    def steps(self, span: Value | int) -> list[Value]:
        """The codes of a span of the block: 8 steps, u8 [64] each."""


class Planes(Codes):
    """Codes, or places in a table, in planes."""

    def __init__(self, panel: Panel, at: Ptr) -> None:
        self.quant, self.field, self.at = panel.quant, panel.fields[0], at

    def steps(self, span: Value | int) -> list[Value]:
        found = unpack(self.at.at(span * self.field.span_bytes), self.field.bits, STEPS)
        return [lookup(step, self.quant.table) for step in found] if self.quant.table else found


class Trits(Codes):
    """Codes of three levels."""

    def __init__(self, panel: Panel, at: Ptr) -> None:
        count = panel.spans * STEPS
        self.room = room(at.k, count * VECTOR)
        for j in range(count):
            if j % TRITS == 0:
                fraction = at.load("u8", VECTOR, j // TRITS * VECTOR, VECTOR)
            self.room.store(digit(fraction), j * VECTOR, VECTOR)
            fraction = fraction + fraction + fraction

    def steps(self, span: Value | int) -> list[Value]:
        at = self.room.at(span * (STEPS * VECTOR))
        return [at.load("u8", VECTOR, j * VECTOR, VECTOR) for j in range(STEPS)]


def digit(fraction: Value) -> Value:
    """The first digit to the base 3 of fractions of 256."""
    k, n = fraction.k, fraction.lanes
    one, two = k.const("u8", 1, n), k.const("u8", 2, n)
    # Of 256, a third is above 85 and two thirds are above 170.
    return k.select(fraction > 170, two, k.select(fraction > 85, one, k.zeros("u8", n)))


class Entries(Codes):
    """Entries of a grid, and signs where its codes are sizes."""

    def __init__(self, panel: Panel, at: Ptr) -> None:
        quant, fields = panel.quant, panel.fields
        self.signs = at.at(fields[-1].at) if panel.has_signs else None
        self.turn = at.k.const("u8", 2 * quant.zero, VECTOR)
        self.grid = grid_of(panel, at)

    def steps(self, span: Value | int) -> list[Value]:
        steps = self.grid.steps(span)
        if self.signs is None:
            return steps
        signs, k = self.signs.at(span * VECTOR).load("u8", VECTOR, 0, VECTOR), self.turn.k
        # A code is zero + size; zero - size where the sign is set.
        negative = [(signs & (1 << j)).compare("!=", 0) for j in range(STEPS)]
        return [k.select(bits, self.turn - step, step) for bits, step in zip(negative, steps, strict=True)]


FORMS: Mapping[str, type[Codes]] = {"planes": Planes, "entries": Entries, "trits": Trits}


def codes_of(panel: Panel, at: Ptr) -> Codes:
    """The codes of the block at an address."""
    return FORMS[panel.form](panel, at)


class Scales:
    """Units, lows and numbers of the block at an address."""

    def __init__(self, panel: Panel, at: Ptr) -> None:
        self.panel, self.at = panel, at
        self.units = self.units_at(0) if panel.quant.unit_groups == panel.quant.groups else []
        self.numbers = at.at(panel.all_unit_bytes)
        if panel.numbers and (panel.quant.step_bits < 8 or panel.quant.odd_steps):
            self.numbers = self.unpacked()

    def units_at(self, unit: Value | int) -> list[Value]:
        """A unit, and its low where the type has one: f32 [16]."""
        kind, size, factor = self.panel.quant.unit_kind, self.panel.unit_bytes, self.panel.quant.factor
        at = self.at.at(unit * (self.panel.parts * size))
        found = [load_floats(at, kind, ROWS, i * size) for i in range(self.panel.parts)]
        return [found[0] * factor, *found[1:]] if factor != 1 else found

    def unpacked(self) -> Ptr:
        """The numbers a byte each."""
        count = self.panel.numbers * ROWS
        target, odd = room(self.at.k, count), [1] * ROWS + [0] * ROWS if self.panel.parts == 2 else [1] * ROWS
        for i, four in enumerate(unpack(self.numbers, self.panel.quant.step_bits, count // VECTOR, 1)):
            if self.panel.quant.odd_steps:
                ones = four.k.lanes("u8", odd * (VECTOR // len(odd)))
                four = (four << ones) | ones
            target.store(four, i * VECTOR, VECTOR)
        return target

    def of(self, group: Value | int) -> list[Value]:
        """Scale, and offset where the type has them, of a group of the block: f32 [16]."""
        panel = self.panel
        units = self.units or self.units_at(group // panel.quant.unit_groups)
        if not panel.numbers:
            return units
        at, kinds = self.numbers.at(group * (panel.parts * ROWS)), (panel.step_kind, "u8")
        return [unit * at.load(kinds[i], ROWS, i * ROWS).to("f32") for i, unit in enumerate(units)]
