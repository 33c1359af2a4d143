"""Looking codes up: bytes in a small table that a register holds, and several at once in a grid in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import llvmlite.ir as ir

from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.backends.cpu.values import BYTE, LANE, POINTER, type_of

__all__ = ["LOOKUPS", "constant", "gather", "lookup", "wide_lookup"]

ENTRIES = 16
# LLVM's name of each recipe's instruction, and its lanes.
LOOKUPS: Mapping[str, tuple[str, int]] = {
    "pshufb.512": ("llvm.x86.avx512.pshuf.b.512", 64),
    "pshufb.256": ("llvm.x86.avx2.pshuf.b", 32),
    "pshufb.128": ("llvm.x86.ssse3.pshuf.b.128", 16),
    "tbl1": ("llvm.aarch64.neon.tbl1.v16i8", 16),
}
WIDE, WIDE_ENTRIES = "llvm.x86.avx512.vpermi2var.qi.512", 128


def lookup(places: Value, table: Sequence[int]) -> Value:
    """table[p] for each lane p: u8 from u8. The table has at most 16 entries, and no place is beyond them."""
    k, lanes = places.k, places.lanes
    usable = [LOOKUPS[recipe] for recipe in k.target.lookups]
    if not usable:
        return by_comparison(places, table)
    # The widest that the lanes fill, or the narrowest, filled up.
    name, width = next((pair for pair in usable if pair[1] <= lanes), usable[-1])
    if lanes < width:
        padded = places.splat(width) if lanes == 1 else places.cat(k.zeros("u8", width - lanes))
        return looked_up(name, padded, table)[:lanes] if lanes > 1 else looked_up(name, padded, table)[0]
    parts = [looked_up(name, places[i : i + width], table) for i in range(0, lanes, width)]
    while len(parts) > 1:
        parts = [a.cat(b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def looked_up(name: str, places: Value, table: Sequence[int]) -> Value:
    """By one instruction, which looks up in each 16 bytes of its table by the places beside them."""
    k, whole = places.k, [*table, *[0] * (ENTRIES - len(table))]
    entries = k.lanes("u8", whole * (places.lanes // ENTRIES))
    return Value(k, k.intrinsic(name, places.ir.type, [entries.ir, places.ir]), "u8")


def by_comparison(places: Value, table: Sequence[int]) -> Value:
    k, found = places.k, places.k.zeros("u8", places.lanes)
    for place, entry in enumerate(table):
        if entry:
            found = k.select(places.compare("==", place), k.const("u8", entry, places.lanes), found)
    return found


def wide_lookup(places: Value, upper: Sequence[Value], table: Ptr) -> Value:
    """An entry of a table of bytes for each of 64 places: u8 from u8, on a target with wide lookups.

    The low seven bits of a place count in 128 entries. upper: the bits above them, the lowest first, a bool a lane; the
    table has 128 entries for each of their combinations.
    """
    k, half = places.k, WIDE_ENTRIES // 2
    parts = []
    for at in range(0, WIDE_ENTRIES << len(upper), WIDE_ENTRIES):
        low, high = (table.load("u8", half, at + i, half) for i in (0, half))
        parts.append(Value(k, k.intrinsic(WIDE, low.ir.type, [low.ir, places.ir, high.ir]), "u8"))
    for bit in upper:
        parts = [k.select(bit, b, a) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def constant(k: Kernel, name: str, data: bytes) -> Ptr:
    """Bytes that are part of the kernel. The same name stands for the same bytes."""
    kind, known = ir.ArrayType(BYTE, len(data)), k.module.globals.get(name)
    if known is None:
        known = ir.GlobalVariable(k.module, kind, name)
        known.linkage, known.global_constant, known.align, known.type = "internal", True, 64, POINTER
        known.initializer = ir.Constant(kind, bytearray(data))
    return Ptr(k, known)


def gather(table: Ptr, places: Sequence[Value], width: int) -> Value:
    """The `width` bytes, 4 or 8, of each entry of a table, one entry after another: u8 from single lanes of i64.

    Loads of single entries are faster than x86's instructions that gather, and every processor has them.
    """
    k, kind = table.k, {4: "i32", 8: "i64"}[width]
    found = ir.Constant(type_of(kind, len(places)), ir.Undefined)
    for lane, place in enumerate(places):
        entry = table.load(kind, 1, place * width, width)
        if len(places) == 1:
            return entry.as_("u8")
        found = k.b.insert_element(found, entry.ir, ir.Constant(LANE, lane))
    return Value(k, found, kind).as_("u8")
