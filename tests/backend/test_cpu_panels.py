"""Weights in panels, read back by a reader written from the layout's description alone."""

from __future__ import annotations

import numpy as np
import pytest
from test_cpu_rig import FLOATS, QUANTIZED, Guarded, groups_of, pack_matrix, random_rows, run

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.floats import float_bytes, float_pack
from puna.backends.cpu.kernels.pack import PACK_SCRATCH, pack
from puna.backends.cpu.panels import Panel
from puna.quants import by_name

ROWS = [1, 15, 16, 17, 199]
# The code bits of each plane, the widest first.
PLANES = {4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}


def read_panels(kind: str, data: np.ndarray, rows: int, k: int) -> dict[str, np.ndarray]:
    """What panels hold, by the names of `groups_of`, [whole panels of 16 rows, ...]."""
    quant = by_name(kind)
    panels = data.reshape(-(-rows // 16), -1)
    code_bytes = k // 32 * sum(PLANES[quant.bits]) * 64
    found = {"codes": read_codes(panels[:, :code_bytes], PLANES[quant.bits])}
    offset, steps = quant.has_offset, quant.has_steps
    unit_bytes, group_bytes = (64 if offset else 32), (32 if offset else 16) if steps else 0
    block_bytes = unit_bytes + quant.groups * group_bytes
    blocks = k // quant.block
    scales = panels[:, code_bytes : code_bytes + blocks * block_bytes].reshape(
        len(panels), blocks, block_bytes
    )
    for n, name in enumerate(["unit", "low"] if offset else ["unit"]):
        halves = np.ascontiguousarray(scales[..., 32 * n : 32 * n + 32]).view("<f2")  # [panels, blocks, 16]
        found[name] = halves.transpose(0, 2, 1).reshape(-1, blocks)
    if steps:
        groups = scales[..., unit_bytes:].reshape(len(panels), blocks * quant.groups, -1, 16)
        for n, name in enumerate(["step", "low_step"] if offset else ["step"]):
            found[name] = groups[:, :, n].transpose(0, 2, 1).reshape(-1, blocks * quant.groups)
    return found


def read_codes(data: np.ndarray, planes: tuple[int, ...]) -> np.ndarray:
    """Codes [rows, k] from the planes of all spans [panels, bytes]."""
    spans = data.reshape(len(data), -1, sum(planes), 64)
    codes = np.zeros((len(data), spans.shape[1], 8, 64), np.uint8)
    vector = low = 0
    for bits in planes:
        for step in range(8):
            place, shift = step % bits, step // bits * bits
            part = (spans[:, :, vector + place] >> shift) & (2**bits - 1)
            codes[:, :, step] |= (part << low).astype(np.uint8)
        vector += bits
        low += bits
    # [panel, span, step, row, value of the step] -> [panel, row, span, step, value]
    return codes.reshape(*codes.shape[:3], 16, 4).transpose(0, 3, 1, 2, 4).reshape(len(data) * 16, -1)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", QUANTIZED)
def test_panels_hold_the_files_numbers(kind: str, rows: int) -> None:
    """Codes, units and steps are those that puna.quants reads from the rows, for one block a row and for several."""
    for blocks in (1, 3):
        k = blocks * by_name(kind).block
        raw = random_rows(kind, rows, k, np.random.default_rng([rows, k]))
        want, packed = groups_of(kind, raw), pack_matrix(kind, raw, k)
        got = read_panels(kind, packed.array, rows, k)
        assert set(got) == set(want) - {"scale", "offset"}
        for name, values in got.items():
            kept = values[:rows].view(np.int8) if want[name].dtype == np.int8 else values[:rows]
            # Scales survive as the halves they were: the sign of a zero too.
            np.testing.assert_array_equal(kept.astype(want[name].dtype), want[name], err_msg=name)
            assert (np.signbit(kept.astype(np.float32)) == np.signbit(want[name].astype(np.float32))).all()


def test_packing_is_cut_into_panels_freely() -> None:
    """Panels packed by several calls, in any order, are those packed by one."""
    raw = random_rows("Q4_K", 100, 256, np.random.default_rng(4))
    want, panel = pack_matrix("Q4_K", raw, 256), Panel("Q4_K")
    out = Guarded(panel.matrix_bytes(100, 256))
    args = [raw.ctypes.data, out.address, 100, 256, raw.strides[0], panel.nbytes(256)]
    for begin, end in ((5, 7), (0, 1), (1, 5), (3, 3)):
        run(Spec.of(pack, panel=panel), args, begin, end, PACK_SCRATCH)
    np.testing.assert_array_equal(out.array, want.array)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", FLOATS)
def test_float_panels(kind: str, rows: int) -> None:
    """Value i of 16 rows side by side, bits as in the file, for widths that are no multiple of anything."""
    size = by_name(kind).bytes
    word = {2: np.uint16, 4: np.uint32}[size]
    for k in (1, 7, 64):
        raw = random_rows(kind, rows, k, np.random.default_rng([rows, k]))
        out = Guarded(float_bytes(kind, rows, k))
        args = [raw.ctypes.data, out.address, rows, k, raw.strides[0], 0]
        run(Spec.of(float_pack, kind=kind), args, 0, -(-rows // 16))
        assert out.is_intact
        got = out.view(word, -1, k, 16).transpose(0, 2, 1).reshape(-1, k)
        np.testing.assert_array_equal(got[:rows], raw.view(word))


@pytest.mark.parametrize("kind", QUANTIZED)
def test_panels_take_no_more_memory_than_the_file(kind: str) -> None:
    """A matrix in panels takes at most 15% more than the file's rows, and no less than its codes and scales need."""
    quant, panel = by_name(kind), Panel(kind)
    for rows, k in ((16, quant.block), (4096, 4096), (128256, 2048)):
        stored = rows * quant.row_bytes(k)
        assert stored <= panel.matrix_bytes(rows, k) <= 1.15 * stored
    assert panel.nbytes(quant.block) % 64 == 0, (
        "a panel that is no whole vector moves the next off its alignment"
    )


@pytest.mark.parametrize("kind", FLOATS)
def test_float_panels_take_the_files_memory(kind: str) -> None:
    """Float panels are the file's bytes, rows rounded up to 16."""
    assert float_bytes(kind, 4096, 1000) == 4096 * by_name(kind).row_bytes(1000)
    assert float_bytes(kind, 4097, 1000) == 4112 * by_name(kind).row_bytes(1000)
