"""From a file's rows to panels, by the type's own lines."""

from __future__ import annotations

from puna.backends.cpu.lanes import LLVMBlock, value_of
from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.backends.cpu.panels import ROWS, SPAN, VECTOR, Panel
from puna.backends.cpu.verbs import round_halves
from puna.quants.lanes import Lanes

__all__ = ["PACK_SCRATCH", "pack"]

PACK_SCRATCH = ROWS * 256  # bytes: the codes of a block of 16 rows


def pack(k: Kernel, *, panel: Panel) -> None:
    """Panels begin to end - 1 of a matrix.

    args: 0 rows in the file's form, 8 panels, 16 rows, 24 values a row, 32 bytes a row, 40 bytes a panel.
    """
    args, begin, end, scratch = k.args
    source, target = args.ptr(0), args.ptr(8)
    rows, values, row_bytes, panel_bytes = (args.load("i64", offset=16 + 8 * i, align=8) for i in range(4))
    quant = panel.quant
    for p in k.loop(begin, end):
        codes = target.at(p * panel_bytes)
        scales = codes.at(values // SPAN * panel.span_bytes)
        for b in k.loop(0, values // quant.block):
            block_scales = scales.at(b * panel.block_bytes)
            for r in k.loop(0, ROWS):
                row = p * ROWS + r
                row = k.select(row < rows, row, rows - 1)  # the last panel repeats the last row
                block = source.at(row * row_bytes + b * quant.bytes)
                unpack_row(k, panel, block, scratch.at(r * quant.block), block_scales, r)
            for s in k.loop(0, panel.spans):
                out = codes.at((b * panel.spans + s) * panel.span_bytes)
                store_planes(panel, transpose(k, scratch.at(s * SPAN), quant.block), out)


def unpack_row(k: Kernel, panel: Panel, at: Ptr, codes: Ptr, scales: Ptr, row: Value) -> None:
    """One row's block: its codes to `codes`, its units and steps to their places among 16 rows."""
    quant, block = panel.quant, LLVMBlock(at)

    def half(lanes: Lanes | None, offset: int) -> None:
        if lanes is not None:
            scales.at(row * 2).store(round_halves(value_of(lanes)), offset)

    def byte(lanes: Lanes | None, offset: int) -> None:
        if lanes is not None:
            scales.at(row).store(value_of(lanes), offset)

    half(quant.unit(block, 0), 0)
    half(quant.low(block, 0), ROWS * 2)
    for g in range(quant.groups):
        codes.store(value_of(quant.codes(block, g)), g * quant.group)
        place = panel.unit_bytes + g * panel.group_bytes
        byte(quant.step(block, g), place)
        byte(quant.low_step(block, g), place + ROWS)


def transpose(k: Kernel, codes: Ptr, stride: int) -> list[Value]:
    """SPAN codes of 16 rows, `stride` bytes apart, to 8 steps: u8 [64], 4 values of each row."""
    rows = [codes.load("i32", 8, r * stride) for r in range(ROWS)]
    both = [rows[i].cat(rows[i + 8]) for i in range(8)]
    for distance in (1, 2, 4):
        for i in range(8):
            if i & distance:
                continue
            a, b = both[i], both[i | distance]
            even = [lane if not lane & distance else 16 + lane - distance for lane in range(16)]
            odd = [lane + distance if not lane & distance else 16 + lane for lane in range(16)]
            both[i], both[i | distance] = a.shuffle(even, b), a.shuffle(odd, b)
    return [step.as_("u8") for step in both]


def store_planes(panel: Panel, steps: list[Value], out: Ptr) -> None:
    low = at = 0
    for bits in panel.planes:
        for i in range(bits):
            vector = None
            for m in range(8 // bits):
                part = ((steps[i + bits * m] >> low) & ((1 << bits) - 1)) << (bits * m)
                vector = part if vector is None else vector | part
            assert vector is not None
            out.store(vector, at * VECTOR)
            at += 1
        low += bits
