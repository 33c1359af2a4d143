"""Matrix products of a mixture of experts: each token times the matrices of the experts that it chose.

A slot is one choice: slot t * used + e is the e-th expert of token t. `by_expert` shares out panels of all experts and
takes, for each, the slots that chose it, so that a panel is read once however many tokens want it. `by_slot` shares
out the panels of each slot's expert, for one token. The sums are those of `few` and `many`, so the bits are too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from puna.backends.cpu.kernels.direct import last_row, row_products
from puna.backends.cpu.kernels.floats import float_products, is_plain
from puna.backends.cpu.kernels.linear import products, spread, store_rows, store_sums, sweep
from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.backends.cpu.panels import ROWS, VECTOR, Panel

__all__ = ["by_expert", "by_slot", "by_slot_direct", "list_bytes"]

LANES = 16
FEW, TILE = 8, 4  # most slots for which a panel is unpacked in registers, and those taken at a time


@dataclass(frozen=True)
class Call:
    """The arguments.

    0 panels of expert 0, 8 activations, 16 result f32, 24 chosen experts i32 [slots], 32 rows of a matrix, 40 values a
    row, 48 bytes a panel, 56 bytes an expert, 64 bytes between activations, 72 bytes between results, 80 slots,
    88 bytes of a thread's list of slots.
    """

    panels: Ptr
    x: Ptr
    y: Ptr
    ids: Ptr
    rows: Value
    values: Value
    panel_bytes: Value
    expert_bytes: Value
    x_stride: Value
    y_stride: Value
    slots: Value
    list_bytes: Value

    @classmethod
    def read(cls, args: Ptr) -> Call:
        numbers = [args.load("i64", offset=32 + 8 * i, align=8) for i in range(8)]
        return cls(args.ptr(0), args.ptr(8), args.ptr(16), args.ptr(24), *numbers)

    @property
    def matrix_panels(self) -> Value:
        return (self.rows + (ROWS - 1)) // ROWS

    def expert(self, slot: Value) -> Value:
        """The expert that a slot chose."""
        return self.ids.load("i32", 1, slot * 4, 4).to("i64")

    def panel(self, expert: Value, p: Value) -> Ptr:
        return self.panels.at(expert * self.expert_bytes).at(p * self.panel_bytes)


def list_bytes(slots: int) -> int:
    """Bytes of a thread's list of slots."""
    return -(-slots * 4 // VECTOR) * VECTOR


def by_slot(k: Kernel, *, form: str, sharing: int) -> None:
    """Units are the panels of slot 0's expert, then those of slot 1's, and so on.

    sharing: slots that follow one another and read the same activations.
    """
    args, begin, end, _ = k.args
    call = Call.read(args)
    for unit in k.loop(begin, end):
        slot, p = unit // call.matrix_panels, unit % call.matrix_panels
        x = call.x.at(slot // sharing * call.x_stride)
        (total,) = panel_products(form, call, call.panel(call.expert(slot), p), [x])
        store_rows(k, total, call.y.at(slot * call.y_stride + p * (ROWS * 4)), call.rows - p * ROWS)


def by_slot_direct(k: Kernel, *, form: str, sharing: int) -> None:
    """As `by_slot`, on runs of 16 rows in the file's form, a row in the place of a panel."""
    args, begin, end, _ = k.args
    call = Call.read(args)
    for unit in k.loop(begin, end):
        slot, run = unit // call.matrix_panels, unit % call.matrix_panels
        x = call.x.at(slot // sharing * call.x_stride)
        for row in k.loop(run * ROWS, last_row(k, run + 1, call.rows)):
            (result,) = row_products(form, call.panel(call.expert(slot), row), call.values, [x])
            call.y.at(slot * call.y_stride + row * 4).store(result, 0, 4)


def by_expert(k: Kernel, *, form: str, sharing: int, width: int, tile: int) -> None:
    """Units are runs of `width` panels of expert 0's matrix, then those of expert 1's, and so on."""
    args, begin, end, scratch = k.args
    call, spare = Call.read(args), scratch.at(args.load("i64", offset=88, align=8))
    runs = (call.matrix_panels + (width - 1)) // width
    known, count = k.var(k.const("i64", -1)), k.var(k.zeros("i64"))
    for unit in k.loop(begin, end):
        expert, run = unit // runs, unit % runs
        with k.when(known.now.compare("!=", expert)):
            count.set(choosers(k, call, expert, scratch))
            known.set(expert)
        one = Unit(call, form, sharing, expert, run * width, width, scratch, count.now)
        with k.when(one.count.compare("==", 1)):
            one.in_registers(1)
        if is_plain(form):
            with k.when(one.count > 1):
                one.in_registers(TILE)
            continue
        with k.when(k.both(one.count > 1, one.count <= FEW)):
            one.in_registers(TILE)
        with k.when(one.count > FEW):
            one.unpacked(tile, spare)


def panel_products(form: str, call: Call, panel: Ptr, xs: Sequence[Ptr]) -> list[Value]:
    """A panel's rows times each token: f32 [16]."""
    if is_plain(form):
        return [one for (one,) in float_products(form, [panel], call.values, xs)]
    return products(Panel(form), panel, call.values, call.panel_bytes, xs)


def choosers(k: Kernel, call: Call, expert: Value, found: Ptr) -> Value:
    """List the slots that chose an expert, i32, and give their number."""
    count, wanted = k.var(k.zeros("i64")), expert.to("i32")

    def note(slot: Value) -> None:
        found.at(count.now * 4).store(slot.to("i32"), 0, 4)
        count.set(count.now + 1)

    whole = call.slots // LANES * LANES
    for i in k.loop(0, whole, LANES):
        hits = call.ids.load("i32", LANES, i * 4, 4).compare("==", wanted.splat(LANES)).as_("u16")
        with k.when(hits > 0):
            for n in range(LANES):
                with k.when(((hits >> n) & 1) > 0):
                    note(i + n)
    for i in k.loop(whole, call.slots):
        with k.when(call.ids.load("i32", 1, i * 4, 4).compare("==", wanted)):
            note(i)
    return count.now


@dataclass(frozen=True)
class Unit:
    """`width` panels of one expert, from `first` on, and the `count` slots that chose it, listed at `slots`."""

    call: Call
    form: str
    sharing: int
    expert: Value
    first: Value
    width: int
    slots: Ptr
    count: Value

    def take(self, start: Value, n: int) -> tuple[list[Value], list[Ptr]]:
        """The n slots from `start` on, and where their activations lie; past the end, the last again."""
        k, last = start.k, self.count - 1
        places = [k.select(start + i < last, start + i, last) for i in range(n)]
        slots = [self.slots.load("i32", 1, place * 4, 4).to("i64") for place in places]
        return slots, [self.call.x.at(slot // self.sharing * self.call.x_stride) for slot in slots]

    def in_registers(self, tile: int) -> None:
        """Unpack each panel anew for `tile` slots at a time."""
        call, k = self.call, self.first.k
        stop, panels = self.first + self.width, call.matrix_panels
        for p in k.loop(self.first, k.select(stop < panels, stop, panels)):
            for start in k.loop(0, self.count, tile):
                slots, xs = self.take(start, tile)
                totals = panel_products(self.form, call, call.panel(self.expert, p), xs)
                for slot, total in zip(slots, totals, strict=True):
                    y = call.y.at(slot * call.y_stride + p * (ROWS * 4))
                    store_rows(k, total, y, call.rows - p * ROWS)

    def unpacked(self, tile: int, scratch: Ptr) -> None:
        """Unpack the panels once into scratch, then sweep over them with tiles of slots."""
        call, panel, width, k = self.call, Panel(self.form), self.width, self.first.k
        scales, last = scratch.at(call.values * (ROWS * width)), call.matrix_panels - 1
        for i in range(width):
            p = k.select(self.first + i < last, self.first + i, last)
            place = scratch.at(i * VECTOR), scales.at(i * ROWS * 4)
            spread(panel, call.panel(self.expert, p), call.values, *place, width)
        for start in k.loop(0, self.count, tile):
            slots, xs = self.take(start, tile)
            for slot, sums in zip(slots, sweep(panel, call.values, scratch, scales, xs, width), strict=True):
                store_sums(k, sums, call.y.at(slot * call.y_stride), call.rows, self.first)
