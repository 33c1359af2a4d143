"""Weights in panels, read back by a reader written from the layout's description alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_cpu_rig import FLOATS, QUANTIZED, Guarded, groups_of, pack_matrix, random_rows, run

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.floats import PAIRS, float_bytes, float_pack
from puna.backends.cpu.kernels.pack import PACK_SCRATCH, pack
from puna.backends.cpu.panels import Panel
from puna.quants import QuantType, by_name, dequantize

ROWS = [1, 15, 16, 17, 199]
# The bits of each plane, the widest first.
PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
UNITS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}


class Reader:
    """Reads panels [panels, bytes] from front to back."""

    def __init__(self, panels: np.ndarray) -> None:
        self.panels, self.at = panels, 0

    def take(self, *shape: int, kind: str = "u1") -> np.ndarray:
        """Numbers [panels, *shape]."""
        nbytes = int(np.prod(shape)) * np.dtype(kind).itemsize
        part = np.ascontiguousarray(self.panels[:, self.at : self.at + nbytes])
        self.at += nbytes
        return part.view(kind).reshape(len(part), *shape)

    def planes(self, bits: int, count: int) -> np.ndarray:
        """`count` vectors [panels, count, 64] of numbers of so many bits."""
        numbers, low = np.zeros((len(self.panels), count, 64), np.uint8), 0
        for plane in PLANES[bits]:
            vectors = self.take(count * plane // 8, 64)
            for j in range(count):
                stored = vectors[:, j % vectors.shape[1]] >> (j // vectors.shape[1] * plane)
                numbers[:, j] |= (stored & (2**plane - 1)) << low
            low += plane
        return numbers

    def numbers(self, bits: int, count: int) -> np.ndarray:
        """Numbers [rows, count], 32 of a row's in eight steps at a time."""
        return by_row(np.concatenate([self.planes(bits, 8) for _ in range(count // 32)], axis=1))

    def entries(self, bits: int, count: int) -> np.ndarray:
        """As `numbers`, where four numbers of four rows at a time lie number by number."""
        steps = np.concatenate([self.planes(bits, 8) for _ in range(count // 32)], axis=1)
        return by_row(steps.reshape(*steps.shape[:2], 4, 4, 4).swapaxes(3, 4).reshape(steps.shape)).astype(
            int
        )

    def trits(self, count: int) -> np.ndarray:
        """Digits to the base 3 [rows, count], of five steps in a vector of fractions of 256."""
        fractions = self.take(-(-count // 20), 64).astype(int)
        steps = [fractions * 3**n % 256 * 3 // 256 for n in range(5)]
        return by_row(np.stack(steps, axis=2).reshape(len(fractions), -1, 64)[:, : count // 4])


def by_row(steps: np.ndarray) -> np.ndarray:
    """Steps [panels, n, 64], which are four numbers of 16 rows, as [rows, 4 n]."""
    parts = steps.reshape(*steps.shape[:2], 16, 4).transpose(0, 2, 1, 3)
    return parts.reshape(len(steps) * 16, -1)


def read_codes(reader: Reader, quant: QuantType) -> np.ndarray:
    """Codes of a block [rows, block]."""
    if quant.levels:
        return reader.trits(quant.block)
    if quant.grid is None:
        numbers = reader.numbers(quant.bits, quant.block)
        return np.array(quant.table)[numbers] if quant.table else numbers
    count, grid = quant.block // quant.grid.width, np.frombuffer(quant.grid.data, np.uint8)
    entries = reader.entries(8, count)
    if quant.bits > 8:
        entries |= reader.entries(quant.bits - 8, count) << 8
    codes = grid.reshape(-1, quant.grid.width)[entries].reshape(len(entries), -1).astype(int)
    if Panel(quant.name).has_signs:
        codes = quant.zero + np.where(reader.numbers(1, quant.block), -codes, codes)
    return codes


def read_scales(reader: Reader, quant: QuantType) -> dict[str, np.ndarray]:
    """Units, lows and steps of a block, [rows, n] each."""
    parts, found = 2 if quant.has_offset else 1, {}
    units = reader.take(quant.groups // quant.unit_groups, parts, 16, kind=UNITS[quant.unit_kind])
    if quant.unit_kind == "BF16":
        units = (units.astype(np.uint32) << 16).view(np.float32)
    for n, name in enumerate(("unit", "low")[:parts]):
        found[name] = units[:, :, n].transpose(0, 2, 1).reshape(len(units) * 16, -1)
    if quant.has_steps:
        count = quant.groups * parts
        numbers = reader.planes(quant.step_bits, count // 4).reshape(-1, quant.groups, parts, 16)
        for n, name in enumerate(("step", "low_step")[:parts]):
            found[name] = numbers[:, :, n].transpose(0, 2, 1).reshape(len(units) * 16, -1)
    return found


def read_panels(kind: str, data: np.ndarray, rows: int, k: int) -> dict[str, np.ndarray]:
    """What panels hold, by the names of `groups_of`, [whole panels of 16 rows, ...]."""
    quant, reader = by_name(kind), Reader(data.reshape(-(-rows // 16), -1))
    blocks = k // quant.block
    codes = [read_codes(reader, quant) for _ in range(blocks)]
    scales = [read_scales(reader, quant) for _ in range(blocks)]
    assert reader.panels.shape[1] - reader.at < 64
    found = {name: np.concatenate([each[name] for each in scales], axis=1) for name in scales[0]}
    return {"codes": np.concatenate(codes, axis=1), **found}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_panels_hold_the_files_numbers(kind: str) -> None:
    """Codes, units and steps are those that puna.quants reads from the rows, for one block a row and for several."""
    for rows, blocks in itertools.product(ROWS, (1, 3)):
        k = blocks * by_name(kind).block
        raw = random_rows(kind, rows, k, np.random.default_rng([rows, k]))
        want, packed = groups_of(kind, raw), pack_matrix(kind, raw, k)
        got = read_panels(kind, packed.array, rows, k)
        assert set(got) == set(want) - {"scale", "offset"}
        for name, values in got.items():
            kept = values[:rows].view(np.int8) if want[name].dtype == np.int8 else values[:rows]
            # Scales survive as the floats they were: the sign of a zero too.
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


def test_pairs_in_panels() -> None:
    """Of BF16 in pairs, values 2 i and 2 i + 1 of a row lie side by side, those of 16 rows one after another."""
    raw = random_rows("BF16", 40, 30, np.random.default_rng(4))
    out = Guarded(float_bytes(PAIRS, 40, 30))
    run(Spec.of(float_pack, form=PAIRS), [raw.ctypes.data, out.address, 40, 30, raw.strides[0], 0], 0, 3)
    assert out.is_intact
    got = out.view(np.uint16, 3, 15, 16, 2).transpose(0, 2, 1, 3).reshape(48, 30)
    np.testing.assert_array_equal(got[:40], raw.view(np.uint16))


@pytest.mark.parametrize("kind", FLOATS)
def test_float_panels(kind: str) -> None:
    """Value i of 16 rows side by side, in the file's bits or as the nearest F32, for widths that are no multiple."""
    word = {"F16": np.uint16, "BF16": np.uint16}.get(kind, np.uint32)
    for rows, k in itertools.product(ROWS, (1, 7, 64)):
        raw = random_rows(kind, rows, k, np.random.default_rng([rows, k]))
        out = Guarded(float_bytes(kind, rows, k))
        args = [raw.ctypes.data, out.address, rows, k, raw.strides[0], 0]
        run(Spec.of(float_pack, form=kind), args, 0, -(-rows // 16))
        assert out.is_intact
        got = out.view(word, -1, k, 16).transpose(0, 2, 1).reshape(-1, k)
        kept = raw.view(word) if kind in {"F32", "F16", "BF16"} else dequantize(by_name(kind), raw).view(word)
        np.testing.assert_array_equal(got[:rows], kept)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_panels_take_no_more_memory_than_the_file(kind: str) -> None:
    """A matrix in panels takes at most 15% more than the file's rows, for K types no more than 4%."""
    quant, panel = by_name(kind), Panel(kind)
    for rows, k in ((16, 4 * quant.block), (4096, 4096), (128256, 2048)):
        stored = rows * quant.row_bytes(k)
        assert panel.matrix_bytes(rows, k) <= (1.04 if kind.endswith("_K") else 1.15) * stored
    assert panel.nbytes(quant.block) % 64 == 0, (
        "a panel that is no whole vector moves the next off its alignment"
    )


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_S", "TQ1_0"])
def test_panels_of_these_take_the_files_memory(kind: str) -> None:
    """Codes, steps and scales are as small as in the file."""
    assert Panel(kind).matrix_bytes(4096, 4096) == 4096 * by_name(kind).row_bytes(4096)


@pytest.mark.parametrize("kind", FLOATS)
def test_float_panels_take_the_files_memory(kind: str) -> None:
    """Panels of F32, F16 and BF16 are the file's bytes, those of other plain types F32's; rows are rounded up to 16."""
    size = {"F16": 2, "BF16": 2}.get(kind, 4)
    assert float_bytes(kind, 4096, 1000) == 4096 * 1000 * size
    assert float_bytes(kind, 4097, 1000) == 4112 * 1000 * size
