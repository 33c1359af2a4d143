"""From a file's rows to panels, by the type's own lines."""

from __future__ import annotations

from puna.backends.cpu.kernels.entries import in_entry_order
from puna.backends.cpu.kernels.planes import store_planes
from puna.backends.cpu.lanes import LLVMBlock, value_of
from puna.backends.cpu.lang import Kernel, Ptr, Value
from puna.backends.cpu.panels import ROWS, SPAN, TRITS, VECTOR, Panel
from puna.backends.cpu.verbs import store_floats

__all__ = ["PACK_SCRATCH", "pack"]

PACK_SCRATCH = ROWS * 384 + 512  # bytes: a block of 16 rows, its codes or entries and signs, and its steps


def pack(k: Kernel, *, panel: Panel) -> None:
    """Panels begin to end - 1 of a matrix.

    args: 0 rows in the file's form, 8 panels, 16 rows, 24 values a row, 32 bytes a row, 40 bytes a panel.
    """
    args, begin, end, scratch = k.args
    source, target = args.ptr(0), args.ptr(8)
    rows, values, row_bytes, panel_bytes = (args.load("i64", offset=16 + 8 * i, align=8) for i in range(4))
    quant = panel.quant
    stride = sum(field.count for field in panel.fields)
    numbers = scratch.at(ROWS * stride)
    for p in k.loop(begin, end):
        codes = target.at(p * panel_bytes)
        scales = codes.at(values // quant.block * panel.code_bytes)
        for b in k.loop(0, values // quant.block):
            block_scales = scales.at(b * panel.scale_bytes)
            for r in k.loop(0, ROWS):
                row = p * ROWS + r
                row = k.select(row < rows, row, rows - 1)  # the last panel repeats the last row
                block = LLVMBlock(source.at(row * row_bytes + b * quant.bytes))
                unpack_codes(panel, block, scratch.at(r * stride))
                unpack_scales(panel, block, block_scales.at(r * (panel.unit_bytes // ROWS)), numbers.at(r))
            pack_codes = pack_trits if panel.form == "trits" else pack_planes
            pack_codes(k, panel, scratch, stride, codes.at(b * panel.code_bytes))
            pack_numbers(panel, numbers, block_scales.at(panel.all_unit_bytes))


def unpack_codes(panel: Panel, block: LLVMBlock, out: Ptr) -> None:
    """A row's block: the numbers of each of the panel's fields, a byte each, field after field."""
    quant = panel.quant
    for g in range(quant.groups):
        if quant.grid is None:
            parts = [quant.places(block, g) if quant.table else quant.codes(block, g)]
        else:
            entries, signs = quant.places(block, g), quant.signs(block, g)
            parts = [entries.u8()] + ([(entries >> 8).u8()] if quant.bits > 8 else [])
            parts += [] if signs is None else [signs.bits()]
        at = 0
        for field, part in zip(panel.fields, parts, strict=True):
            out.store(value_of(part), at + field.count // quant.groups * g)
            at += field.count


def unpack_scales(panel: Panel, block: LLVMBlock, units: Ptr, numbers: Ptr) -> None:
    """A row's block: its units, and its steps a byte each, to their places among 16 rows."""
    quant = panel.quant
    for u in range(quant.groups // quant.unit_groups):
        for i, unit in enumerate((quant.unit, quant.low)[: panel.parts]):
            lanes = unit(block, u * quant.unit_groups)
            assert lanes is not None
            store_floats(units, quant.unit_kind, value_of(lanes), (u * panel.parts + i) * panel.unit_bytes)
    for n in range(panel.numbers):
        g, i = divmod(n, panel.parts)
        lanes = (quant.low_step if i else quant.step)(block, g)
        assert lanes is not None
        numbers.store(value_of(lanes), n * ROWS)


def pack_planes(k: Kernel, panel: Panel, rows: Ptr, stride: int, out: Ptr) -> None:
    """The numbers of 16 rows, `stride` bytes apart, in planes."""
    for field in panel.fields:
        for i in k.loop(0, field.count // SPAN):
            steps = transpose(rows.at(i * SPAN), stride)
            if field.count < panel.quant.block:
                steps = [in_entry_order(step) for step in steps]
            store_planes(steps, field.bits, out.at(field.at).at(i * field.span_bytes))
        rows = rows.at(field.count)


def pack_trits(k: Kernel, panel: Panel, rows: Ptr, stride: int, out: Ptr) -> None:
    """Codes of three levels, five steps to a vector."""
    steps = [step for i in range(panel.spans) for step in transpose(rows.at(i * SPAN), stride)]
    for i in range(0, len(steps), TRITS):
        number = k.zeros("u8", VECTOR)
        for n in range(TRITS):
            number = number + number + number
            number = number + steps[i + n] if i + n < len(steps) else number
        # The least fraction of 256 that is not below the number's fraction of 3 ** 5.
        fraction = ((number.to("u16") << 8) + (3**TRITS - 1)) // 3**TRITS
        out.store(fraction.to("u8"), i // TRITS * VECTOR, VECTOR)


def pack_numbers(panel: Panel, numbers: Ptr, out: Ptr) -> None:
    """Steps and low steps of all rows, in planes of their bits."""
    vectors = [numbers.load("u8", VECTOR, i, 1) for i in range(0, panel.numbers * ROWS, VECTOR)]
    store_planes(vectors, panel.quant.step_bits, out, 1)


def transpose(rows: Ptr, stride: int) -> list[Value]:
    """SPAN bytes of 16 rows, `stride` bytes apart, to 8 steps: u8 [64], 4 bytes of each row."""
    loaded = [rows.load("i32", 8, r * stride) for r in range(ROWS)]
    both = [loaded[i].cat(loaded[i + 8]) for i in range(8)]
    for distance in (1, 2, 4):
        for i in range(8):
            if i & distance:
                continue
            a, b = both[i], both[i | distance]
            even = [lane if not lane & distance else 16 + lane - distance for lane in range(16)]
            odd = [lane + distance if not lane & distance else 16 + lane for lane in range(16)]
            both[i], both[i | distance] = a.shuffle(even, b), a.shuffle(odd, b)
    return [step.as_("u8") for step in both]
